"""Releases of a framework, their order, and what earlier ones did differently.

A release written with two numbers ("0.12") stands for the newest patch of that series, which is what package managers install.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Releases = tuple[tuple[str, str], ...]
"""(version, month YYYY-MM in which it came out), oldest first."""


@dataclass(frozen=True, slots=True)
class Former:
    """Facts that held until a release or, for a framework that has none, until a month."""

    facts: Mapping[str, object]
    """Values by field of `FrameworkFacts`."""
    until: str = ""
    """The first release in which they no longer hold."""
    until_month: str = ""
    """The first month (YYYY-MM) in which they no longer hold; read only where `until` is empty."""

    def held(self, version: str, month: str) -> bool:
        """Whether they still held in this release, or at this software date."""
        return precedes(version, self.until) if self.until else month < self.until_month


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, for ordering."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version))


def precedes(version: str, release: str) -> bool:
    """Whether a version is older than a release; one that gives fewer numbers stands for the newest of its series."""
    key = version_key(version)
    return key < version_key(release)[: len(key)]


def newest_at(releases: Releases, month: str) -> str:
    """The newest release that was out in this month, or the oldest known one."""
    out = [version for version, released in releases if released <= month]
    return out[-1] if out else releases[0][0]


def month_of(releases: Releases, version: str) -> tuple[str, bool]:
    """Month of a release, and whether the release is a known one; a patch release counts as its minor one."""
    key = version_key(version)
    for known, month in releases:
        known_key = version_key(known)
        if key[: len(known_key)] == known_key:
            return month, True
    earlier = [month for known, month in releases if version_key(known) <= key]
    return (earlier[-1] if earlier else releases[0][1]), False
