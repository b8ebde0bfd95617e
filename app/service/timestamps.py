"""Timestamps as they are sent: RFC 3339, UTC, microseconds."""

from __future__ import annotations

from datetime import datetime


def rfc3339(moment: datetime) -> str:
    """Such as 2026-01-02T03:04:05.678901Z."""
    assert moment.utcoffset() is not None
    assert not moment.utcoffset()
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
