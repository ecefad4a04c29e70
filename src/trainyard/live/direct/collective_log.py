"""The collectives of a process: one row per kind, with real time, and simulated time and energy."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainyard.errors import NotModelled
from trainyard.ir import Step
from trainyard.live.direct.pricing import Machine, Price, Priced
from trainyard.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`real_s` is from the call to the end of gloo's work; calls that overlap count each in full, real and simulated."""

    kind: str
    calls: int = 0
    bytes: int = 0
    real_s: float = 0.0
    simulated_s: float = 0.0
    simulated_j: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Rows by kind, of one rank or merged.

    A price in joules is of a whole group; each of its ranks logs an equal share. Merging adds bytes and joules; calls and seconds
    are simultaneous on all ranks, so the maximum counts.
    """

    machine: str
    ranks: tuple[int, ...]
    wall_s: float
    rows: tuple[Row, ...]

    @property
    def total(self) -> Row:
        """Of all rows, steps computed included."""
        sums = {name: sum(getattr(row, name) for row in self.rows) for name in Row.__slots__ if name != "kind"}
        return Row(kind="total", **sums)

    @property
    def simulated_s(self) -> float:
        return self.total.simulated_s

    @property
    def simulated_j(self) -> float:
        return self.total.simulated_j

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ranks": list(self.ranks), "rows": [asdict(row) for row in self.rows], "total": asdict(self.total)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Report:
        rows = tuple(Row(**row) for row in document["rows"])
        return Report(machine=document["machine"], ranks=tuple(document["ranks"]), wall_s=document["wall_s"], rows=rows)

    @staticmethod
    def merge(reports: Iterable[Report]) -> Report:
        """
        >>> from dataclasses import replace
        >>> one = Report(machine="m", ranks=(0,), wall_s=1.0, rows=(Row(kind="barrier", calls=2, simulated_s=1, simulated_j=3),))
        >>> Report.merge([one, replace(one, ranks=(1,), wall_s=2.0)]).total
        Row(kind='total', calls=2, bytes=0, real_s=0.0, simulated_s=1, simulated_j=6.0)
        """
        reports = list(reports)
        rows: dict[str, Row] = {}
        for row in (row for report in reports for row in report.rows):
            old = rows.get(row.kind, Row(kind=row.kind))
            rows[row.kind] = Row(
                kind=row.kind,
                calls=max(old.calls, row.calls),
                bytes=old.bytes + row.bytes,
                real_s=max(old.real_s, row.real_s),
                simulated_s=max(old.simulated_s, row.simulated_s),
                simulated_j=old.simulated_j + row.simulated_j,
            )
        return Report(
            machine=reports[0].machine,
            ranks=tuple(sorted(rank for report in reports for rank in report.ranks)),
            wall_s=max(report.wall_s for report in reports),
            rows=tuple(rows.values()),
        )

    def __str__(self) -> str:
        from io import StringIO

        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        who = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"
        table = Table(title=f"{who} on {self.machine}, {show(self.wall_s, 's')} real", box=SIMPLE_HEAD, title_justify="left")
        table.add_column("collective")
        for name in ("calls", "bytes", "real", "simulated", "energy"):
            table.add_column(name, justify="right")
        for row in (*self.rows, self.total):
            real = show(row.real_s, "s") if row.real_s else "-"  # nothing of it went through gloo: steps, clusters of one process
            cells = (show(row.bytes, "B"), real, show(row.simulated_s, "s"), show(row.simulated_j, "J"))
            table.add_row(row.kind, str(row.calls), *cells, end_section=bool(self.rows) and row is self.rows[-1])
        text = StringIO()
        Console(file=text, width=100).print(table)
        return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


class CollectiveLog:
    """The rows of one process; written by gloo's threads and by the training thread."""

    def __init__(self, machine: Machine, rank: int) -> None:
        self.machine, self.rank = machine, rank
        self._rows: dict[str, Row] = {}
        self._prices: dict[tuple[str, int, int], Price] = {}
        self._step: tuple[Step, Price] | None = None
        self._lock = threading.Lock()
        self._began_s = time.monotonic()

    def price(self, kind: str, size_bytes: int, clusters: int) -> Price:
        key = (kind, size_bytes, clusters)
        if key not in self._prices:
            self._prices[key] = self.machine.price(*key)
        return self._prices[key]

    def price_step(self, step: Step) -> Price:
        if self._step is None or self._step[0] is not step:
            if not isinstance(self.machine, Priced):
                raise NotModelled(
                    f"{self.machine!r} prices collectives alone: give a system of trainyard.systems.pim.systems to price steps"
                )
            self._step = (step, self.machine.price_step(step))
        return self._step[1]

    def add(self, kind: str, size_bytes: int, real_s: float, price: Price, share: float = 1.0) -> None:
        """One call; `share` is this rank's part of the joules."""
        with self._lock:
            row = self._rows.get(kind, Row(kind=kind))
            self._rows[kind] = Row(
                kind=kind,
                calls=row.calls + 1,
                bytes=row.bytes + size_bytes,
                real_s=row.real_s + real_s,
                simulated_s=row.simulated_s + price.seconds,
                simulated_j=row.simulated_j + price.joules * share,
            )

    def report(self, clusters: int) -> Report:
        with self._lock:
            rows = tuple(self._rows.values())
        name = self.machine.describe(clusters) if isinstance(self.machine, Priced) else type(self.machine).__name__
        return Report(machine=name, ranks=(self.rank,), wall_s=time.monotonic() - self._began_s, rows=rows)
