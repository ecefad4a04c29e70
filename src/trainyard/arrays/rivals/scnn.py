"""SCNN: Cartesian products of compressed weights and compressed inputs, scattered over banks of accumulators.

A. Parashar, M. Rhu, A. Mukkara, A. Puglielli, R. Venkatesan, B. Khailany, J. Emer, S. W. Keckler, W. J. Dally: SCNN: An Accelerator
for Compressed-sparse Convolutional Neural Networks. ISCA 2017.

A product is a 1x1 convolution: K are the channels, one operand's rows the output channels (weights), the other's columns the
positions (inputs). Positions are divided among the processing elements and stay there, loaded first (`arrays.rivals.sides`; the
paper has them there from the layer before); weights are broadcast to all, one group of output channels after the other. Of one
channel, F non-zero weights and I non-zero inputs meet in F x I multipliers: every pair is a useful product, but of another output,
so a crossbar scatters them over A banks of accumulators. A group is as many output channels as the banks can hold; all elements
wait for the slowest before the next one.

Its limitation (SIGMA, HPCA 2020, Table III): a matrix product has to be partitioned for it. Few positions leave elements idle, or
their vectors short. Where K is divided as well (`channel_parts`), the sums of an output lie in several elements and travel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from trainyard.arrays.rivals.sides import LOADED, Sides, binomial, in_steps, load_cycles, multiplied, ratio, require_choice, sides
from trainyard.checks import require_flag, require_positive
from trainyard.errors import BadInput
from trainyard.ir import DENSE, ArrayCost, MatMul, Operand, Product, assumed, one_after_another
from trainyard.ir.folds import Folds

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.dense.execution import Execution
    from trainyard.hardware.formats.bitmaps import Bitmap
    from trainyard.masks.contraction import Mask

RUN = 256
"""Channels that an element is followed for where conflicts are sampled; elements wait for each other less often than that."""
DRAWN = 16
"""Runs drawn for a density."""
MOST_ENTRIES = 2**20
"""Accumulators of an element that the compiled counts have room for."""
Span = tuple[int, int]


class Round(NamedTuple):
    """Positions that lie in the elements at the same time, how many in each, and how many output channels go with them."""

    positions: Span
    each: int
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scnn:
    """`elements` processing elements of `wide` x `high` multipliers (weights x inputs) and `banks` accumulator banks.

        cycles               = ceil(non-zero inputs / bandwidth) + those of all groups
        steps of an element  = sum over channels of ceil(non-zero weights / wide) * ceil(its non-zero inputs / high)
        cycles of a group    = the slowest element's steps and the waiting for banks, no less than its weights take to be broadcast

    Product (output, position) goes to bank (high * output + position) mod banks; a bank takes one in a cycle and lets `queue`
    others wait. Steps never grow with fewer non-zeros; conflicts may, as other products then meet. Conflicts are followed in
    `sample` runs of channels and count in proportion (95 % interval); None: in every step.

    >>> array = Scnn(elements=2, weights="a")  # 2 vectors of weights, 2 of each element's 8 positions, 10 channels; 160 inputs
    >>> array.cost(MatMul(8, 16, 10)).cycles, replace(array, loading="left out").cost(MatMul(8, 16, 10)).cycles
    (42, 40)
    """

    # fmt: off
    elements: int = 1024                  # SIGMA, Sec. VI-A: all designs at 16384 multipliers; the paper's own chip has 64
    wide: int = 4                         # SCNN: F
    high: int = 4                         # SCNN: I
    banks: int = 32                       # SCNN: A, twice the multipliers
    bandwidth: int = 128                  # SIGMA, Sec. VI-A: elements per cycle that enter, the same for all designs
    bank_entries: int = assumed(32, "accumulators of a bank: with an element's positions, they set the size of a group", 16, 64)
    local_bytes: int = assumed(10 * 1024, "memory of one element's inputs, which sets the energy of reading it")
    weights: Literal["best", "a", "b"] = assumed(
        "best", "which operand is broadcast as weights; the other lies in the elements", "a", "b", choice=True)
    loading: Literal["counted", "left out"] = assumed("counted", LOADED, "left out")
    queue: int = assumed(4, "products that wait at an accumulator bank before the multipliers stand still", 0, 16)
    broadcast: bool = assumed(True, "one vector of weights a cycle for all elements: none is ahead of it", False)
    channel_parts: int = assumed(1, "parts that K is divided into, each on its own elements", 4, 16, choice=True)
    link_sums: int = assumed(1, "sums that an element sends to its neighbour in a cycle where K is divided", 4)
    # fmt: on
    sample: int | None = 16
    seed: int = 0
    operand_aware: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(
            "Scnn", elements=self.elements, wide=self.wide, high=self.high, banks=self.banks, bank_entries=self.bank_entries,
            bandwidth=self.bandwidth, local_bytes=self.local_bytes, channel_parts=self.channel_parts, link_sums=self.link_sums,
            **({} if self.sample is None else {"sample": self.sample}),
        )  # fmt: skip
        require_choice("Scnn", self.weights, self.loading)
        require_flag("Scnn", broadcast=self.broadcast)
        for name in ("queue", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise BadInput(f"Scnn: {name} must be a whole number of at least 0, got {value!r}")
        if self.banks < self.wide * self.high:
            raise BadInput(f"Scnn: {self.banks} banks for {self.wide} x {self.high} products in a cycle: give at least as many")
        if self.banks * self.bank_entries > MOST_ENTRIES:
            raise BadInput(f"Scnn: {self.banks} x {self.bank_entries} accumulators in an element: give no more than {MOST_ENTRIES}")
        if self.elements % self.channel_parts:
            raise BadInput(f"Scnn: channel_parts={self.channel_parts} does not divide {self.elements} elements")

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.elements * self.wide * self.high

    @property
    def across(self) -> int:
        """Elements that divide the positions."""
        return self.elements // self.channel_parts

    @property
    def passing(self) -> int:
        """Cycles in which the sums of a wide x high block of outputs are added up over the parts of K, each a share of them."""
        parts = self.channel_parts
        return -(-self.wide * self.high * (parts - 1) // (parts * self.link_sums))

    @property
    def folds(self) -> tuple[Folds, ...]:
        """Of dense operands, which meet no conflicts: blocks of wide outputs by high positions an element. None with loading."""
        if self.loading == "counted":
            return ()
        m, n, k = self.wide, self.across * self.high, self.channel_parts
        forms = {
            "a": Folds(m=m, n=n, k=k, stream="k", fixed=self.passing),
            "b": Folds(m=n, n=m, k=k, stream="k", fixed=self.passing),
        }
        return tuple(form for side, form in forms.items() if self.weights in ("best", side))

    @property
    def guides(self) -> tuple[Folds, ...]:
        """With loading, channel by channel: as many positions as there is room for come in, then vectors of weights.

        Or half as many, a quarter and so on, as a tile may have fewer: loading is never taken for more than twice what it is, save
        below one cycle. None where K is divided: sums that pass have no place in such a form.
        """
        found: list[Folds] = []
        if self.channel_parts > 1:
            return ()
        positions = self.across * self.high
        while True:
            fixed = -(-positions // self.bandwidth)
            if self.weights != "b":
                found.append(Folds(m=self.wide, n=positions, k=1, stream="m", fixed=fixed))
            if self.weights != "a":
                found.append(Folds(m=positions, n=self.wide, k=1, stream="n", fixed=fixed))
            if fixed == 1:
                return tuple(found)
            positions = -(-positions // 2)

    def granule(self) -> tuple[int, int, int]:
        """A group of outputs, a vector of positions in each element (along either side where that is open), a run of channels."""
        group = self.banks * self.bank_entries // self.high
        few, many = max(self.wide, group), max(self.across * self.high, group)
        return many if self.weights == "b" else few, many if self.weights == "a" else few, self.channel_parts * RUN

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def cost(self, op: MatMul, *, a: Operand | Mask = DENSE, b: Operand | Mask = DENSE) -> ArrayCost:
        return min((self._cost(side, op.count) for side in sides(op, a, b, self.weights)), key=lambda cost: cost.cycles)

    def steps(self, op: MatMul, *, a: Operand | Mask = DENSE, b: Operand | Mask = DENSE) -> int:
        """Cycles of one product if no two products ever met at a bank."""
        return min(self._in_proportion(side, 1.0, 0.0)[0] + self._loading(side) for side in sides(op, a, b, self.weights))

    def rounds(self, outputs: int, positions: int) -> Iterator[Round]:
        """Positions are cut where an element would hold more than leave room for `wide` output channels in its accumulators."""
        entries = self.banks * self.bank_entries
        most = max(1, entries // self.wide // self.high) * self.high
        first = 0
        while first < positions:
            each = min(most, -(-(positions - first) // self.across))
            last = min(positions, first + each * self.across)
            yield Round((first, last), each, min(-(-outputs // self.wide), entries // each // self.wide) * self.wide)
            first = last

    def parts(self, depth: int) -> list[Span]:
        each = -(-depth // self.channel_parts)
        return [(first, min(first + each, depth)) for first in range(0, depth, each)]

    def _loading(self, side: Sides) -> int:
        return load_cycles(side.input_count, self.bandwidth, self.loading)

    def _cost(self, side: Sides, count: int) -> ArrayCost:
        half = 0.0
        if side.dense:
            form = Folds(m=self.wide, n=self.across * self.high, k=self.channel_parts, stream="k", fixed=self.passing)
            cycles = form.cycles(side.outputs, side.vectors, side.depth)
        elif side.weights is not None and side.inputs is not None and self._all(side):
            cycles = self._followed(side.weights, side.inputs)
        else:
            cycles, half = self._in_proportion(side, *self._waits(side))
        cycles, events = (cycles + self._loading(side)) * count, self._events(side, count)
        return ArrayCost(cycles=cycles, finish=(cycles,), events=events, uncertainty=half * count)

    def _all(self, side: Sides) -> bool:
        """Whether every step is followed: because it shall be, or because there are no more than the runs of a sample."""
        groups = sum(-(-side.outputs // cut.group) * self.across for cut in self.rounds(side.outputs, side.vectors))
        return self.sample is None or groups * -(-side.depth // RUN) <= self.sample

    def _in_proportion(self, side: Sides, each: float, half: float) -> tuple[int, float]:
        """Cycles of steps that take `each` on average, and half of the interval of all from that of one."""
        if side.weights is None or side.inputs is None:
            return self._expected(side, each, half)
        return self._counted(side.weights, side.inputs, each, half)

    def _waits(self, side: Sides) -> tuple[float, float]:
        """Cycles for each step, in runs of channels at random places or of drawn masks, and half of the interval."""
        if side.weights is None or side.inputs is None:
            cut, deep = next(self.rounds(side.outputs, side.vectors)), -(-side.depth // self.channel_parts)
            return _drawn(self, cut, deep, side.weight_density, side.input_density)
        return self._conflicts(side, side.weights, side.inputs)

    def _steps(self, weights: Bitmap, inputs: Bitmap, cut: Round) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of one part of K and one round: steps of each group and element, and vectors of weights of each group."""
        import numpy as np

        from trainyard.kernels.arrays.rivals import cartesian_steps

        own = inputs.words[cut.positions[0] : cut.positions[1]]
        found = np.zeros((-(-weights.rows // cut.group), -(-len(own) // cut.each)), np.int64)
        arriving = np.zeros(len(found), np.int64)
        cartesian_steps(weights.words, own, cut.group, cut.each, self.wide, self.high, found, arriving)
        return found, arriving

    def _passed(self, outputs: int, cut: Round) -> int:
        """Cycles in which all sums of a round go from element to element."""
        return -(-outputs // self.wide) * -(-cut.each // self.high) * self.passing

    def _counted(self, weights: Bitmap, inputs: Bitmap, each: float, half: float) -> tuple[int, float]:
        import numpy as np

        cycles, waiting = 0.0, 0.0
        for cut in self.rounds(weights.rows, inputs.rows):
            slowest: Any = 0
            for part in self.parts(weights.columns):
                steps, arriving = self._steps(weights.cut((0, weights.rows), part), inputs.cut((0, inputs.rows), part), cut)
                busy = steps.max(axis=1)
                waiting += float(busy.sum()) / self.channel_parts
                slowest = np.maximum(slowest, np.maximum(busy * each, arriving if self.broadcast else 0))
            cycles += float(np.sum(slowest)) + self._passed(weights.rows, cut)
        return round(cycles), half * waiting

    def _conflicts(self, side: Sides, weights: Bitmap, inputs: Bitmap) -> tuple[float, float]:
        import numpy as np

        random, cuts = np.random.default_rng(self.seed), list(self.rounds(side.outputs, side.vectors))
        found = np.zeros((max(2, self.sample or DRAWN), 2), np.int64)
        for run in found:
            cut = cuts[random.integers(len(cuts))]
            group = int(random.integers(-(-side.outputs // cut.group))) * cut.group
            element = cut.positions[0] + int(random.integers(-(-(cut.positions[1] - cut.positions[0]) // cut.each))) * cut.each
            first = int(random.integers(max(1, side.depth - RUN + 1)))
            channels = (first, min(first + RUN, side.depth))
            left = weights.cut((group, min(group + cut.group, side.outputs)), channels)
            self._follow(left, inputs.cut((element, min(element + cut.each, cut.positions[1])), channels), run)
        return ratio(found[:, 1], found[:, 0])

    def _follow(self, weights: Bitmap, inputs: Bitmap, found: npt.NDArray[np.int64]) -> None:
        """Steps and cycles of one element and one group, with the queues of the banks."""
        import numpy as np

        from trainyard.kernels.arrays.rivals import scatter

        left, right = (np.ascontiguousarray(bits.bits().T) for bits in (weights, inputs))
        scatter(left, right, self.wide, self.high, self.banks, self.queue, found)

    def _followed(self, weights: Bitmap, inputs: Bitmap) -> int:
        """Every step of every element."""
        import numpy as np

        cycles, run = 0, np.zeros(2, np.int64)
        for cut in self.rounds(weights.rows, inputs.rows):
            slowest: Any = 0
            for part in self.parts(weights.columns):
                left, right = weights.cut((0, weights.rows), part), inputs.cut((0, inputs.rows), part)
                steps, arriving = self._steps(left, right, cut)
                for group, element in np.ndindex(*steps.shape):
                    top, first = group * cut.group, cut.positions[0] + element * cut.each
                    block = left.cut((top, min(top + cut.group, left.rows)), (0, left.columns))
                    self._follow(block, right.cut((first, min(first + cut.each, cut.positions[1])), (0, left.columns)), run)
                    steps[group, element] = run[1]
                slowest = np.maximum(slowest, np.maximum(steps.max(axis=1), arriving if self.broadcast else 0))
            cycles += int(np.sum(slowest)) + self._passed(weights.rows, cut)
        return cycles

    def _expected(self, side: Sides, each: float, half: float) -> tuple[int, float]:
        """Of independent non-zeros: mean of the steps, and how far the slowest of so many elements lies above it."""
        cycles, waiting = 0.0, 0.0
        deep = -(-side.depth // self.channel_parts)
        for cut in self.rounds(side.outputs, side.vectors):
            elements = -(-(cut.positions[1] - cut.positions[0]) // cut.each)
            whole, rest = divmod(side.outputs, cut.group)
            for group, times in ((cut.group, whole), (rest, 1)):
                shape = (group, cut.each, deep, elements)
                busy, arriving = _slowest(self, shape, side.weight_density, side.input_density)
                waiting += busy * times
                cycles += times * max(busy * each, arriving if self.broadcast else 0.0)
            cycles += self._passed(side.outputs, cut)
        return round(cycles), half * waiting

    def _events(self, side: Sides, count: int) -> dict[str, float]:
        """Inputs go to their elements once and are read there for each group; weights are read once in a round, for all elements.

        A product is added in its bank: a read and a write of the element's memory.
        """
        cuts = list(self.rounds(side.outputs, side.vectors))
        groups = sum(-(-side.outputs // cut.group) for cut in cuts) / len(cuts)
        useful = side.useful
        counted = {
            "mac": useful,
            **side.ports(side.weight_count * len(cuts), side.input_count),
            **side.ports(side.weight_count * len(cuts) * self.across, side.input_count, at="local_write"),
            **side.ports(useful / self.high, side.input_count * groups, at="local_read"),
            "local_read_out": useful,
            "local_write_out": useful,
            "link_sum": side.outputs * side.vectors * (self.channel_parts - 1),
            "scratchpad_read_out": 0,
            "scratchpad_write_out": side.outputs * side.vectors,
        }
        return {name: number * count for name, number in counted.items()}

    def execute(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Execution:
        """Multiply two small matrices: loading, then every step and product in its bank's queue. "best" takes the faster way."""
        from trainyard.arrays.rivals.scnn_execution import execute

        left, right = multiplied(a, b)
        found = [execute(self, left, right.T)] if self.weights in ("best", "a") else []
        if self.weights in ("best", "b"):
            done = execute(self, right.T, left)
            found.append(replace(done, product=done.product.T))
        return min(found, key=lambda done: done.cycles)


@lru_cache(maxsize=4096)
def _slowest(array: Scnn, shape: tuple[int, int, int, int], weights: float, inputs: float) -> tuple[float, float]:
    """Expected steps of the slowest element in a group, and vectors of its weights.

    `shape`: outputs of the group, positions of an element, channels, elements. Elements of a part of K share its weights: their
    steps differ by their inputs alone, those of parts by their weights as well. Sums over many channels: normally distributed.
    """
    import numpy as np

    outputs, positions, channels, elements = shape
    left, right = in_steps(binomial(outputs, weights), array.wide), in_steps(binomial(positions, inputs), array.high)
    many = np.arange(max(len(left), len(right)))
    (mean, square), (own, own_square) = (
        (float(likely @ many[: len(likely)]), float(likely @ many[: len(likely)] ** 2)) for likely in (left, right)
    )
    arriving = channels * mean + math.sqrt(max(0.0, channels * (square - mean**2))) * _highest(array.channel_parts)
    above = math.sqrt(max(0.0, channels * square * (own_square - own**2))) * _highest(elements)
    return min(arriving * own + above, arriving * (len(right) - 1)), arriving


@lru_cache(maxsize=4096)
def _highest(among: int) -> float:
    """Expected maximum of so many standard normal numbers.

    >>> [round(_highest(among), 2) for among in (1, 2, 1024)]
    [0.0, 0.56, 3.25]
    """
    import numpy as np

    places = np.linspace(-8.0, 8.0, 1601)
    below = np.array([0.5 * math.erfc(-place / math.sqrt(2.0)) for place in places]) ** among
    return abs(float(np.sum((places > 0) + 0.5 * (places == 0) - below)) * 0.01)


@lru_cache(maxsize=1024)
def _drawn(array: Scnn, cut: Round, depth: int, weights: float, inputs: float) -> tuple[float, float]:
    """Cycles for each step, of drawn masks, and half of the interval."""
    import numpy as np

    from trainyard.hardware.formats.bitmaps import Bitmap

    found = np.zeros((DRAWN, 2), np.int64)
    for seed, run in enumerate(found):
        left = Bitmap.random(cut.group, min(depth, RUN), nonzero=weights, seed=2 * (array.seed + seed))
        array._follow(left, Bitmap.random(cut.each, min(depth, RUN), nonzero=inputs, seed=2 * (array.seed + seed) + 1), run)
    return ratio(found[:, 1], found[:, 0])
