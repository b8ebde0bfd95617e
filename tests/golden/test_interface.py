"""The HTTP interface in short, kept as a file: what is renamed or removed shows as a diff.

    python tests/golden/test_interface.py      regenerates it

The contract lets fields be added, never renamed or removed.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from app.service.main import create_app
from app.settings import Settings

FILE = Path(__file__).with_name("interface.json")


def interface() -> dict[str, Any]:
    """Calls with their parameters and statuses, and the fields of every schema, required ones marked with *."""
    with tempfile.TemporaryDirectory() as folder:
        document = create_app(Settings(data_dir=Path(folder), log_level="error")).openapi()
    calls = {
        f"{method.upper()} {path}": {
            "parameters": sorted(parameter["name"] for parameter in call.get("parameters", ())),
            "statuses": sorted(call["responses"]),
        }
        for path, methods in document["paths"].items()
        for method, call in methods.items()
    }
    schemas = {
        name: sorted(field + "*" * (field in schema.get("required", ())) for field in schema["properties"])
        for name, schema in document["components"]["schemas"].items()
        if "properties" in schema
    }
    return {"calls": calls, "schemas": schemas}


def test_the_interface_is_the_one_kept() -> None:
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    assert interface() == kept, "added something? regenerate it: python tests/golden/test_interface.py"


if __name__ == "__main__":
    lines = [
        f'  "{part}": {{\n'
        + ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(content.items()))
        + "\n  }"
        for part, content in interface().items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
