"""A mesh of switches that are set once for each mapping: SIGMA's NoC between Flex-DPEs.

E. Qin et al.: SIGMA. HPCA 2020, Sec. IV-B: one switch beside each Flex-DPE, joined to a 2-D mesh, set statically, without routing
or flow control at run time. The switches of one group of Flex-DPEs (a Flex-DPU) act as a bus: what enters one of them is at all
of them in the same cycle. Through switches of other groups data go hop by hop, one cycle for each. `bandwidth` is how many
elements a link (and the SRAM that feeds the mesh) carries in a cycle.

Left open by the paper, taken here: the SRAM lies along the first row, Flex-DPEs are numbered down one column and up the next (so
any run of numbers is connected), and a group is fed straight down the column of its topmost switch. As nothing can wait inside
the mesh, the SRAM sends by a timetable: in order, `bandwidth` elements a cycle, and never so that one element overtakes an
earlier one. That is enough to keep every link within its bandwidth (`oracles.mesh_execution` moves elements link by link).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isqrt

from trainyard.checks import require_positive
from trainyard.construction import part


@part
class Mesh:
    """`rows` x `columns` switches behind links of `bandwidth` elements per cycle.

    >>> mesh = Mesh(rows=3, columns=2, bandwidth=4)
    >>> [mesh.place(number) for number in range(6)]
    [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]
    >>> [mesh.hops(group) for group in (range(0, 2), range(2, 4), range(4, 6))]  # the second passes two rows of others
    [0, 2, 0]
    """

    rows: int
    columns: int
    bandwidth: int

    @classmethod
    def of(cls, switches: int, bandwidth: int) -> Mesh:
        """The mesh of so many switches that is nearest to a square, with the longer side at the SRAM.

        >>> Mesh.of(128, bandwidth=128)
        Mesh(rows=8, columns=16, bandwidth=128)
        """
        require_positive("Mesh", switches=switches)
        rows = next(rows for rows in range(isqrt(switches), 0, -1) if switches % rows == 0)
        return cls(rows=rows, columns=switches // rows, bandwidth=bandwidth)

    @property
    def switches(self) -> int:
        return self.rows * self.columns

    def place(self, number: int) -> tuple[int, int]:
        """Row and column of a switch."""
        column, down = divmod(number, self.rows)
        return (self.rows - 1 - down if column % 2 else down), column

    def number(self, row: int, column: int) -> int:
        return column * self.rows + (self.rows - 1 - row if column % 2 else row)

    def hops(self, group: range) -> int:
        """Switches of other groups between the SRAM and a group: the rows above its topmost switch."""
        return self.place(self._entry(group))[0]

    def _entry(self, group: range) -> int:
        return min(group[: 2 * self.rows], key=lambda number: self.place(number)[0])  # two columns hold every row


def delays(hops: Sequence[int]) -> list[int]:
    """Cycles that the SRAM has waited before each packet, from the packets' hops in the order of sending.

    Where a packet has fewer hops than the one before it, it waits for the difference, and so do all that follow.

    >>> delays([0, 3, 1, 2, 0])
    [0, 0, 2, 2, 4]
    """
    waited, delays_of_packets = 0, []
    for before, now in pairwise([0, *hops]):
        waited += max(0, before - now)
        delays_of_packets.append(waited)
    return delays_of_packets
