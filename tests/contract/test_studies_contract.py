"""Optuna's studies beside the service's tables: made first or last, opened by several at once, and shared without a trial given twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import inspect

from app.service.db.engine import build_engine
from app.service.db.migrate import is_current, upgrade
from app.service.db.plans import PlanStore, Submission
from app.service.db.studies import SCHEMA, study_storage
from planner.search.bayes import Knob, KnobStudy

KNOBS = {"threads": Knob(low=1, high=64)}


@pytest.mark.parametrize("is_first", [True, False], ids=["studies first", "service first"])
def test_studies_and_the_services_tables_are_made_in_any_order(database_url: str, is_first: bool) -> None:
    engine = build_engine(database_url)
    if is_first:
        KnobStudy.start(KNOBS, name="a study", seed=1, storage=study_storage(engine)).ask()
    upgrade(engine)
    assert is_current(engine)
    if not is_first:
        KnobStudy.start(KNOBS, name="a study", seed=1, storage=study_storage(engine)).ask()
    assert PlanStore(engine, max_queued_jobs=1).submit("a", Submission("d", "{}", 60.0)).is_new
    assert KnobStudy.resume("a study", storage=study_storage(engine)).counts() == {"told": 0, "failed": 0, "open": 1}
    assert not {"studies", "trials", "alembic_version"} & set(inspect(engine).get_table_names())
    if engine.dialect.name == "postgresql":
        assert "trials" in inspect(engine).get_table_names(schema=SCHEMA)
    else:
        file = Path(str(engine.url.database)).with_name("test-studies.db")
        assert file.stat().st_mode & 0o777 == 0o600
    engine.dispose()


def test_workers_that_open_one_study_at_once_are_given_trials_of_their_own(database_url: str) -> None:
    engines = [build_engine(database_url) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        storages = list(pool.map(study_storage, engines))
        KnobStudy.start(KNOBS, name="shared", seed=1, storage=storages[0])
        studies = [KnobStudy.resume("shared", storage=storage) for storage in storages]

        def work(study: KnobStudy) -> list[int]:
            numbers = []
            for _ in range(4):
                trial = study.ask()
                study.tell(trial.number, float(trial.values["threads"]))
                numbers.append(trial.number)
            return numbers

        asked = sorted(number for numbers in pool.map(work, studies) for number in numbers)
    assert asked == list(range(3 * 4))
    assert studies[0].counts() == {"told": 12, "failed": 0, "open": 0}
    for engine in engines:
        engine.dispose()
