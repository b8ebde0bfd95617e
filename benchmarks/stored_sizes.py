"""What a plan of a thousand ranks takes at rest, and how long it takes to read one of them.

    python -m benchmarks.stored_sizes

One plan is computed and stored in a new SQLite database as a service would. `text_bytes` is what its texts have before they are
compressed, which is what they took until they were.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from app.service.db.engine import build_engine
from app.service.db.jobs import JobStore
from app.service.db.migrate import upgrade
from app.service.db.packing import lines_of, unpacked
from app.service.db.plan_result import split_response
from app.service.db.plans import PlanStore, Submission, write_result
from benchmarks.record import record
from planner.plan import plan

REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3.1-405b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 256},
    "training": {"seq_length": 8192, "global_batch_size": 2048, "precision": "bf16", "framework": "megatron"},
    "top_k": 1000,
}


def main() -> None:
    result = split_response(plan(REQUEST))
    texts = [unpacked(result.response), *(line for block in result.ranked for line in lines_of(unpacked(block)))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sizes.db"
        engine = build_engine(f"sqlite:///{file}")
        upgrade(engine)
        store, jobs = PlanStore(engine, max_queued_jobs=1), JobStore(engine, lease_s=60.0)
        plan_id = store.submit("a", Submission("digest", json.dumps({"request": REQUEST, "calibrations": {}}), 60.0)).id
        job = jobs.claim("me")
        assert job is not None
        before = _pages(engine)
        begun_at = time.perf_counter()
        jobs.finish(
            job, owner="me", status="succeeded", store=lambda connection: write_result(connection, job.key, result)
        )
        written_s = time.perf_counter() - begun_at
        took_s = []
        for rank in range(1, len(texts)):
            begun_at = time.perf_counter()
            assert store.ranked("a", plan_id, rank) == texts[rank]
            took_s.append(time.perf_counter() - begun_at)
        begun_at = time.perf_counter()
        assert store.get("a", plan_id).response == texts[0]
        whole_s = time.perf_counter() - begun_at
        added = _pages(engine) - before
        engine.dispose()
    text_bytes = sum(len(text.encode()) for text in texts)
    record(
        "stored_plan_of_1000_ranks", value=result.stored_bytes / 1e6, unit="MB", goal="<= 2", request=REQUEST,
        num_ranks=len(texts) - 1, text_bytes=text_bytes, file_bytes=added, write_s=round(written_s, 4),
        read_rank_s_p50=round(median(took_s), 5), read_plan_s=round(whole_s, 4),
    )  # fmt: skip
    print(f"{text_bytes:,} bytes of text, {added:,} bytes in the file")


def _pages(engine: Any) -> int:
    """Bytes of the database's pages."""
    with engine.connect() as connection:
        number, size = (connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("page_count", "page_size"))
    return int(number * size)


if __name__ == "__main__":
    main()
