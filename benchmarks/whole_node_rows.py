"""Writes what `benchmarks.whole_node_on_gpu` runs into a folder: python -m benchmarks.whole_node_rows FOLDER --gpus 8

`rows.jsonl` holds evaluate rows, and a folder beside it each launch of one of them. Rows that the planner or an exporter refuses are an
error here, where it costs nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.trial_rows import write
from benchmarks.whole_node.rows import SIZES, rows


def main() -> None:
    """Writes the folder and says how many rows it holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, choices=SIZES, default=8)
    arguments = parser.parse_args()
    found = rows(arguments.gpus)
    write(found, arguments.folder)
    print(f"{len(found)} rows for {arguments.gpus} GPUs")


if __name__ == "__main__":
    main()
