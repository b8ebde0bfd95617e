"""A page of docs/ that holds what a benchmark printed, between two markers that the rest of the page does not touch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MarkedPage:
    """A page and its two markers."""

    path: Path
    begin: str
    end: str

    def text(self) -> str:
        """The page as it is."""
        return self.path.read_text(encoding="utf-8")

    def with_tables(self, tables: str) -> str:
        """The page with these tables between its markers."""
        before, begin, rest = self.text().partition(self.begin)
        _, end, after = rest.partition(self.end)
        assert end, f"{self.path} has no markers"
        return f"{before}{begin}\n\n{tables}\n\n{end}{after}"

    def write(self, tables: str) -> None:
        """Puts the tables between the markers."""
        self.path.write_text(self.with_tables(tables), encoding="utf-8")
