"""Deletes the studies of tunings that are gone: by their age, or because a service ended between deleting a tuning and its study."""

from __future__ import annotations

import re

from sqlalchemy import Engine

from app.errors import UnavailableError
from app.service.db.studies import has_studies, study_storage
from app.service.db.tunings import names_of_tunings
from planner.search.bayes import storage_errors, study_names
from planner.search.tuner import forget_study

_OURS = re.compile(r"(?P<tenant>.+)/(?P<id>tuning-[0-9a-f]{20})", re.DOTALL)
"""Names that tunings of a service give their studies. Whatever else somebody keeps in the same place is left alone."""


def study_name(tenant: str, tuning_id: str) -> str:
    """The name of a tuning's study."""
    return f"{tenant}/{tuning_id}"


def forget_left_studies(engine: Engine) -> int:
    """Deletes them, and returns their number.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database is away.
        UnavailableError: their tables belong to another version of Optuna, or cannot be read.
    """
    if not has_studies(engine):
        return 0
    unreadable: tuple[type[Exception], ...] = (RuntimeError, *storage_errors())
    try:
        storage = study_storage(engine)
        found = [name for name in study_names(storage) if _OURS.fullmatch(name)]
        # Looked up after the studies: a study is made only of a tuning that is there.
        kept = {study_name(tenant, tuning_id) for tenant, tuning_id in names_of_tunings(engine)} if found else set()
        return sum(forget_study(name, storage=storage) for name in found if name not in kept)
    except unreadable as error:
        hint = "Optuna's own tables are meant: `optuna storage upgrade` brings them to the installed version."
        raise UnavailableError(f"the studies of tunings cannot be read: {error}", hint=hint) from error
