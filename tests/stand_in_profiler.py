"""A launcher that measures nothing: it takes the place of torchrun for agents in tests, and writes the document that it is given.

    python tests/stand_in_profiler.py DOCUMENT SECONDS …command that would measure…

It starts a child as launchers do, and writes its own process id and the child's beside the output. SECONDS that are negative fail as
the profiler does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType


def main() -> None:
    document, seconds, arguments = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    out = Path(next(each for each in arguments if each.startswith("--out=")).removeprefix("--out="))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    out.with_suffix(".pids").write_text(json.dumps([os.getpid(), child.pid, arguments]))

    def end(_number: int, _frame: FrameType | None) -> None:
        child.kill()
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
    if seconds < 0:
        child.kill()
        sys.stderr.write("error: GPU 3 is used by other processes\n  Wait for them to end.\nTraceback of a launcher\n")
        sys.exit(5)
    time.sleep(seconds)
    child.kill()
    shutil.copyfile(document, out)


if __name__ == "__main__":
    main()
