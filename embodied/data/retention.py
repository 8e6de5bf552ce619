"""How much a store may hold, and what goes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .index import Row


@dataclass(frozen=True)
class Quota:
    """Limits in bytes on disk. Demonstrations and episodes with interventions are never evicted."""

    total: int | None = None
    strata: Mapping[str, int] = field(default_factory=dict)
    """Limits of single strata."""
    protected: tuple[str, ...] = ("demo",)

    def protects(self, row: Row) -> bool:
        return row.stratum in self.protected or row.human > 0

    def surplus(self, rows: Iterable[Row]) -> list[Row]:
        """Choose the oldest unprotected episodes whose going brings everything within its limit."""
        rows = list(rows)
        going: dict[str, Row] = {}
        for members, limit in self._limits(rows):
            held = sum(row.bytes for row in members if row.id not in going)
            for row in members:
                if held <= limit:
                    break
                if row.id not in going and not self.protects(row):
                    going[row.id] = row
                    held -= row.bytes
        return list(going.values())

    def excess(self, rows: Iterable[Row]) -> str | None:
        """Say which limit protected episodes alone break, if one."""
        for members, limit in self._limits([row for row in rows if self.protects(row)]):
            held = sum(row.bytes for row in members)
            if held > limit:
                return f"{held} bytes of protected episodes ({', '.join(self.protected)}, interventions) exceed the quota of {limit}"
        return None

    def _limits(self, rows: list[Row]) -> list[tuple[list[Row], int]]:
        limits = [([row for row in rows if row.stratum == name], limit) for name, limit in self.strata.items()]
        return limits if self.total is None else [*limits, (rows, self.total)]
