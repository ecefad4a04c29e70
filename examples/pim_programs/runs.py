"""What a program on DPUs gave and what it cost, as a value and as a small table; several of them side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pim_programs.supersteps import Cost
from trainyard.errors import BadInput
from trainyard.systems.pim.device_interface import as_dpu
from trainyard.units import show

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rich.console import Console

    from trainyard.systems.pim.machine import Pim

PARTS = ("compute", "communication", "synchronisation")
PIPED_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A finished program: `values` are what it computed, `cost` what all of its `iterations` took; `work` counts its `unit`s."""

    workload: str
    machine: Pim
    values: npt.NDArray[Any]
    iterations: int
    cost: Cost
    work: int
    unit: str
    converged: bool = True

    @property
    def dpus(self) -> int:
        return self.machine.dpus

    @property
    def machine_name(self) -> str:
        return type(self.machine).__name__

    @property
    def seconds(self) -> float:
        return self.cost.seconds

    @property
    def by_part(self) -> Mapping[str, float]:
        """Seconds of each part; they sum to `seconds`."""
        cost = self.cost
        return dict(zip(PARTS, (cost.compute_s, cost.communication_s, cost.synchronisation_s), strict=True))

    @property
    def bytes(self) -> int:
        """What DPUs said to each other, before headers and padding."""
        return self.cost.message_bytes

    @property
    def energy_j(self) -> float:
        return sum(self.cost.energy_j.values())

    @property
    def work_per_s(self) -> float:
        """Edges or points a second."""
        return self.work / self.seconds

    def table(self, console: Console | None = None) -> None:
        """Prints seconds of one iteration and of the run by part, then bytes and joules."""
        from rich.table import Table
        from rich.text import Text

        console = _console(console)
        ended = "" if self.converged else ", not converged"
        console.print(
            Text(f"{self.workload} on {self.dpus} DPUs ({self.machine_name}): {self.iterations} iterations{ended}", "bold")
        )
        table = Table(box=None, padding=(0, 1), header_style="bold", show_footer=True, footer_style="bold")
        for head, total in (
            ("part", "all"),
            ("an iteration", self.seconds / self.iterations),
            ("run", self.seconds),
            ("share", 1.0),
        ):
            table.add_column(head, _cell(head, total), justify="left" if head == "part" else "right")
        for part, seconds in self.by_part.items():
            share = seconds / self.seconds
            table.add_row(part, *(_cell(head, value) for head, value in
                                  (("", seconds / self.iterations), ("", seconds), ("share", share))))  # fmt: skip
        console.print(table)
        for line in self.lines():
            console.print(Text(f"  {line}"))

    def lines(self) -> list[str]:
        cost, each = self.cost, 1 / self.iterations
        links = ", ".join(f"{name} {show(carried * each, 'B')}" for name, carried in cost.link_bytes.items())
        joules = ", ".join(f"{name} {show(amount, 'J')}" for name, amount in sorted(cost.energy_j.items(), key=lambda row: -row[1]))
        return [
            f"{show(self.work_per_s, '')} {self.unit}s/s; the slowest DPU computes {cost.imbalance:.2f} times as long as the mean",
            f"{show(cost.message_bytes * each, 'B')} in {cost.messages * each:.0f} messages an iteration; {links or 'no links'}",
            f"{show(self.energy_j, 'J')}: {joules}",
        ]


def _cell(head: str, value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1%}" if head == "share" else show(value, "s")


def side_by_side(runs: Sequence[Run], console: Console | None = None) -> None:
    """Prints one row a run; times are of one iteration, the speedup is over the first run."""
    from rich.table import Table
    from rich.text import Text

    if not runs:
        raise BadInput("no runs to show")
    console, first = _console(console), runs[0]
    console.print(Text(f"{first.workload}, one iteration; speedup over {first.machine_name} with {first.dpus} DPUs", "bold"))
    heads = ("DPUs", "machine", "time", *PARTS, "imbalance", "sent", f"{first.unit}s/s", "energy", "speedup")
    table = Table(*heads, box=None, padding=(0, 1), header_style="bold")
    for column in table.columns:
        column.justify = "left" if column.header == "machine" else "right"
    for run in runs:
        each = 1 / run.iterations
        table.add_row(
            str(run.dpus),
            run.machine_name,
            show(run.seconds * each, "s"),
            *(show(seconds * each, "s") for seconds in run.by_part.values()),
            f"{run.cost.imbalance:.2f}",
            show(run.bytes * each, "B"),
            show(run.work_per_s, ""),
            show(run.energy_j * each, "J"),
            f"{first.seconds / first.work * run.work / run.seconds:.2f} x",
        )
    console.print(table)


def require_mram(owner: str, part_bytes: npt.NDArray[np.int64], machine: Pim, instead: str) -> None:
    """Refuses a part that does not fit its DPU's memory, the first of the largest by number."""
    import numpy as np

    rooms = np.repeat([as_dpu(device).mram_bytes for device in machine.devices], machine.dpus_per_cluster)
    worst = int((part_bytes - rooms).argmax())
    if part_bytes[worst] > rooms[worst]:
        raise BadInput(
            f"{owner}: the part of DPU {worst} takes {show(float(part_bytes[worst]), 'B', binary=True)}, its MRAM has "
            f"{show(float(rooms[worst]), 'B', binary=True)}: {instead}"
        )


def _console(console: Console | None) -> Console:
    if console is not None:
        return console
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PIPED_WIDTH)  # a file has no width; 80 would cut numbers
