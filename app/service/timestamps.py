"""Timestamps as the service sends them: RFC 3339, in UTC, with microseconds."""

from __future__ import annotations

from datetime import datetime


def rfc3339(moment: datetime) -> str:
    """The moment as text, such as 2026-01-02T03:04:05.678901Z."""
    # Always six decimals and always Z, so that the texts of two moments sort as the moments do.
    assert moment.utcoffset() is not None
    assert not moment.utcoffset()
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
