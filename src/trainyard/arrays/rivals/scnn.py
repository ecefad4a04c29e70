"""SCNN: Cartesian products of compressed weights and compressed inputs, scattered over banks of accumulators.

A. Parashar, M. Rhu, A. Mukkara, A. Puglielli, R. Venkatesan, B. Khailany, J. Emer, S. W. Keckler, W. J. Dally: SCNN: An Accelerator
for Compressed-sparse Convolutional Neural Networks. ISCA 2017.

A product is a 1x1 convolution: K are the channels, one operand's rows the output channels (weights), the other's columns the
positions (inputs). Positions are divided among the processing elements and stay there, loaded first (`weights_and_inputs`; in the
paper the layer before leaves them there); weights are broadcast to all, one group of output channels after the other. F x I
multipliers take F non-zero weights and I non-zero inputs of one channel: every pair is a useful product, but of another output, so
a crossbar scatters the products over A banks of accumulators. A group is as many output channels as the banks can hold; all
elements wait for the slowest before the next group.

Its limitation (SIGMA, HPCA 2020, Table III): a matrix product has to be partitioned for it. Few positions leave elements idle, or
their vectors short. Where K is divided as well (`channel_parts`), the sums of an output lie in several elements and travel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from trainyard.arrays.rivals.expectation import binomial, expected_normal_maximum, sampled_ratio, step_distribution
from trainyard.arrays.rivals.weights_and_inputs import (
    LOADED,
    WeightsAndInputs,
    fastest_execution,
    load_cycles,
    role_assignments,
)
from trainyard.construction import NonNegativeInt, part
from trainyard.errors import BadInput
from trainyard.ir import DENSE, ArrayCost, MatMul, Operand, Product, assumed, one_after_another
from trainyard.ir.folds import Folds

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.arrays.execution import Execution
    from trainyard.hardware.formats.bitmaps import Bitmap
    from trainyard.masks.contraction import Mask

RUN = 256
"""Channels of one run where conflicts are sampled; elements wait for each other less often than that."""
DRAWN = 16
"""Runs drawn for a density."""
MOST_ENTRIES = 2**20
"""Accumulators of an element that the compiled counts have room for."""
Span = tuple[int, int]


class Round(NamedTuple):
    """Positions that are in the elements at the same time, how many in each, and the output channels of a group."""

    positions: Span
    positions_each: int
    group: int


@part
class Scnn:
    """`elements` processing elements of `wide` x `high` multipliers (weights x inputs) and `banks` accumulator banks.

        cycles               = ceil(non-zero inputs / bandwidth) + those of all groups
        steps of an element  = sum over channels of ceil(non-zero weights / wide) * ceil(its non-zero inputs / high)
        cycles of a group    = the slowest element's steps and the waiting for banks, no less than its weights take to be broadcast

    Product (output, position) goes to bank (high * output + position) mod banks; a bank takes one in a cycle and lets `queue`
    others wait. Steps never grow with fewer non-zeros; conflicts may, as other products then share a bank. Conflicts are simulated
    in `sample` runs of channels and scaled to all steps (95 % interval); None: in every step.

    >>> array = Scnn(elements=2, weights="a")  # 2 vectors of weights, 2 of each element's 8 positions, 10 channels; 160 inputs
    >>> array.cost(MatMul(8, 16, 10)).cycles, Scnn(elements=2, weights="a", loading="left out").cost(MatMul(8, 16, 10)).cycles
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
    queue: NonNegativeInt = assumed(4, "products that wait at an accumulator bank before the multipliers stand still", 0, 16)
    broadcast: bool = assumed(True, "one vector of weights a cycle for all elements: none is ahead of it", False)
    channel_parts: int = assumed(1, "parts that K is divided into, each on its own elements", 4, 16, choice=True)
    link_sums: int = assumed(1, "sums that an element sends to its neighbour in a cycle where K is divided", 4)
    # fmt: on
    sample: int | None = 16
    seed: NonNegativeInt = 0
    operand_aware: ClassVar[bool] = True

    def __post_init__(self) -> None:
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
        """Cycles in which the sums of a wide x high block of outputs are added up over the parts of K."""
        parts = self.channel_parts
        return -(-self.wide * self.high * (parts - 1) // (parts * self.link_sums))

    @property
    def folds(self) -> tuple[Folds, ...]:
        """The closed form of dense operands, which have no conflicts. None where loading is counted."""
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
        """With loading, channel by channel: as many positions as fit are loaded, then vectors of weights arrive.

        A tile may have fewer positions, so forms for half as many, a quarter and so on follow: the guide overestimates loading by a
        factor of two at most, save below one cycle. None where K is divided: such a form cannot express sums that travel.
        """
        forms: list[Folds] = []
        if self.channel_parts > 1:
            return ()
        positions = self.across * self.high
        while True:
            fixed = -(-positions // self.bandwidth)
            if self.weights != "b":
                forms.append(Folds(m=self.wide, n=positions, k=1, stream="m", fixed=fixed))
            if self.weights != "a":
                forms.append(Folds(m=positions, n=self.wide, k=1, stream="n", fixed=fixed))
            if fixed == 1:
                return tuple(forms)
            positions = -(-positions // 2)

    def granule(self) -> tuple[int, int, int]:
        """A group of outputs, a vector of positions in each element (along either side where that is open), a run of channels."""
        group = self.banks * self.bank_entries // self.high
        few, many = max(self.wide, group), max(self.across * self.high, group)
        return many if self.weights == "b" else few, many if self.weights == "a" else few, self.channel_parts * RUN

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return one_after_another(self, products)

    def cost(self, op: MatMul, *, a: Operand | Mask = DENSE, b: Operand | Mask = DENSE) -> ArrayCost:
        """Cycles and events with the faster operand as the weights, of those that `weights` allows."""
        roles = role_assignments(op, a, b, self.weights)
        return min((self._cost(product, op.count) for product in roles), key=lambda cost: cost.cycles)

    def steps(self, op: MatMul, *, a: Operand | Mask = DENSE, b: Operand | Mask = DENSE) -> int:
        """Cycles of one product if there were no bank conflicts."""
        roles = role_assignments(op, a, b, self.weights)
        return min(self._scaled_cycles(product, 1.0, 0.0)[0] + self._loading(product) for product in roles)

    def estimated_cycles(self, op: MatMul, a: Operand, b: Operand) -> int:
        """Expected cycles without bank conflicts, which would be drawn anew for every size of a tile."""
        return self.steps(op, a=a, b=b)

    def rounds(self, outputs: int, positions: int) -> Iterator[Round]:
        """Cuts positions so that an element's accumulators have room for at least `wide` output channels of its positions."""
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

    def _loading(self, product: WeightsAndInputs) -> int:
        return load_cycles(product.input_count, self.bandwidth, self.loading)

    def _cost(self, product: WeightsAndInputs, count: int) -> ArrayCost:
        half_width = 0.0
        if product.is_dense:
            form = Folds(m=self.wide, n=self.across * self.high, k=self.channel_parts, stream="k", fixed=self.passing)
            cycles = form.cycles(product.outputs, product.vectors, product.depth)
        elif product.weights is not None and product.inputs is not None and self._simulates_every_step(product):
            cycles = self._simulated_cycles(product.weights, product.inputs)
        else:
            cycles, half_width = self._scaled_cycles(product, *self._cycles_per_step(product))
        cycles = (cycles + self._loading(product)) * count
        return ArrayCost(cycles=cycles, finish=(cycles,), events=self._events(product, count), uncertainty=half_width * count)

    def _simulates_every_step(self, product: WeightsAndInputs) -> bool:
        """Whether conflicts are simulated in every step: without `sample`, or where there are no more runs than it asks for."""
        groups = sum(-(-product.outputs // cut.group) * self.across for cut in self.rounds(product.outputs, product.vectors))
        return self.sample is None or groups * -(-product.depth // RUN) <= self.sample

    def _scaled_cycles(self, product: WeightsAndInputs, cycles_per_step: float, half_width: float) -> tuple[int, float]:
        """Cycles of all steps from the mean of one step, and half of the interval of both."""
        if product.weights is None or product.inputs is None:
            return self._expected_cycles(product, cycles_per_step, half_width)
        return self._counted_cycles(product.weights, product.inputs, cycles_per_step, half_width)

    def _cycles_per_step(self, product: WeightsAndInputs) -> tuple[float, float]:
        """Mean cycles of a step with its conflicts, in sampled runs of channels or on random masks, and half of the interval."""
        if product.weights is None or product.inputs is None:
            cut, depth = next(self.rounds(product.outputs, product.vectors)), -(-product.depth // self.channel_parts)
            return _drawn_cycles_per_step(self, cut, depth, product.weight_density, product.input_density)
        return self._sampled_cycles_per_step(product, product.weights, product.inputs)

    def _steps(self, weights: Bitmap, inputs: Bitmap, cut: Round) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Steps of each group and element, and weight vectors of each group, in one part of K and one round."""
        import numpy as np

        from trainyard.kernels.arrays.rivals import cartesian_steps

        own = inputs.words[cut.positions[0] : cut.positions[1]]
        steps = np.zeros((-(-weights.rows // cut.group), -(-len(own) // cut.positions_each)), np.int64)
        arriving = np.zeros(len(steps), np.int64)
        cartesian_steps(weights.words, own, cut.group, cut.positions_each, self.wide, self.high, steps, arriving)
        return steps, arriving

    def _passing_cycles(self, outputs: int, cut: Round) -> int:
        """Cycles in which all sums of a round travel from element to element."""
        return -(-outputs // self.wide) * -(-cut.positions_each // self.high) * self.passing

    def _counted_cycles(self, weights: Bitmap, inputs: Bitmap, cycles_per_step: float, half_width: float) -> tuple[int, float]:
        """From the steps that the masks make, each of `cycles_per_step`."""
        import numpy as np

        cycles, busy_steps = 0.0, 0.0
        for cut in self.rounds(weights.rows, inputs.rows):
            slowest: Any = 0
            for channels in self.parts(weights.columns):
                steps, arriving = self._steps(weights.cut((0, weights.rows), channels), inputs.cut((0, inputs.rows), channels), cut)
                busy = steps.max(axis=1)
                busy_steps += float(busy.sum()) / self.channel_parts
                slowest = np.maximum(slowest, np.maximum(busy * cycles_per_step, arriving if self.broadcast else 0))
            cycles += float(np.sum(slowest)) + self._passing_cycles(weights.rows, cut)
        return round(cycles), half_width * busy_steps

    def _sampled_cycles_per_step(self, product: WeightsAndInputs, weights: Bitmap, inputs: Bitmap) -> tuple[float, float]:
        """Runs of `RUN` channels of one group on one element, drawn at random."""
        import numpy as np

        random, cuts = np.random.default_rng(self.seed), list(self.rounds(product.outputs, product.vectors))
        counts = np.zeros((max(2, self.sample or DRAWN), 2), np.int64)
        for steps_and_cycles in counts:
            cut = cuts[random.integers(len(cuts))]
            group = int(random.integers(-(-product.outputs // cut.group))) * cut.group
            elements = -(-(cut.positions[1] - cut.positions[0]) // cut.positions_each)
            element = cut.positions[0] + int(random.integers(elements)) * cut.positions_each
            first = int(random.integers(max(1, product.depth - RUN + 1)))
            channels = (first, min(first + RUN, product.depth))
            group_weights = weights.cut((group, min(group + cut.group, product.outputs)), channels)
            own_inputs = inputs.cut((element, min(element + cut.positions_each, cut.positions[1])), channels)
            self._simulate(group_weights, own_inputs, steps_and_cycles)
        return sampled_ratio(counts[:, 1], counts[:, 0])

    def _simulate(self, weights: Bitmap, inputs: Bitmap, steps_and_cycles: npt.NDArray[np.int64]) -> None:
        """Fills in steps and cycles of one element and one group, with the queues of the banks."""
        import numpy as np

        from trainyard.kernels.arrays.rivals import scatter

        left, right = (np.ascontiguousarray(bits.bits().T) for bits in (weights, inputs))
        scatter(left, right, self.wide, self.high, self.banks, self.queue, steps_and_cycles)

    def _simulated_cycles(self, weights: Bitmap, inputs: Bitmap) -> int:
        """Every step of every element, with its conflicts."""
        import numpy as np

        cycles, steps_and_cycles = 0, np.zeros(2, np.int64)
        for cut in self.rounds(weights.rows, inputs.rows):
            slowest: Any = 0
            for channels in self.parts(weights.columns):
                left, right = weights.cut((0, weights.rows), channels), inputs.cut((0, inputs.rows), channels)
                busy, arriving = self._steps(left, right, cut)
                for group, element in np.ndindex(*busy.shape):
                    top, first = group * cut.group, cut.positions[0] + element * cut.positions_each
                    block = left.cut((top, min(top + cut.group, left.rows)), (0, left.columns))
                    own = right.cut((first, min(first + cut.positions_each, cut.positions[1])), (0, left.columns))
                    self._simulate(block, own, steps_and_cycles)
                    busy[group, element] = steps_and_cycles[1]
                slowest = np.maximum(slowest, np.maximum(busy.max(axis=1), arriving if self.broadcast else 0))
            cycles += int(np.sum(slowest)) + self._passing_cycles(weights.rows, cut)
        return cycles

    def _expected_cycles(self, product: WeightsAndInputs, cycles_per_step: float, half_width: float) -> tuple[int, float]:
        """From densities, non-zeros independent of each other: the expected steps of the slowest element."""
        cycles, busy_steps = 0.0, 0.0
        depth = -(-product.depth // self.channel_parts)
        for cut in self.rounds(product.outputs, product.vectors):
            elements = -(-(cut.positions[1] - cut.positions[0]) // cut.positions_each)
            full_groups, rest = divmod(product.outputs, cut.group)
            for group, times in ((cut.group, full_groups), (rest, 1)):
                shape = (group, cut.positions_each, depth, elements)
                busy, arriving = _slowest_element(self, shape, product.weight_density, product.input_density)
                busy_steps += busy * times
                cycles += times * max(busy * cycles_per_step, arriving if self.broadcast else 0.0)
            cycles += self._passing_cycles(product.outputs, cut)
        return round(cycles), half_width * busy_steps

    def _events(self, product: WeightsAndInputs, count: int) -> dict[str, float]:
        """Inputs are written to their elements once and read there for each group; weights are read once a round for all elements.

        A product is added in its bank: a read and a write of the element's memory.
        """
        cuts = list(self.rounds(product.outputs, product.vectors))
        groups = sum(-(-product.outputs // cut.group) for cut in cuts) / len(cuts)
        useful, weights, inputs = product.useful_products, product.weight_count * len(cuts), product.input_count
        events = {
            "mac": useful,
            **product.port_events(weights, inputs),
            **product.port_events(weights * self.across, inputs, port="local_write"),
            **product.port_events(useful / self.high, inputs * groups, port="local_read"),
            "local_read_out": useful,
            "local_write_out": useful,
            "link_sum": product.outputs * product.vectors * (self.channel_parts - 1),
            "scratchpad_read_out": 0,
            "scratchpad_write_out": product.outputs * product.vectors,
        }
        return {name: number * count for name, number in events.items()}

    def execute(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Execution:
        """Multiplies two small matrices step by step, each product through its bank's queue. "best" returns the faster run."""
        from trainyard.arrays.rivals.scnn_execution import execute

        return fastest_execution(self.weights, a, b, lambda weights, inputs: execute(self, weights, inputs))


@lru_cache(maxsize=4096)
def _slowest_element(
    array: Scnn, shape: tuple[int, int, int, int], weight_density: float, input_density: float
) -> tuple[float, float]:
    """Expected steps of the slowest element in a group, and vectors of its weights.

    `shape`: outputs of the group, positions of an element, channels, elements. Elements of a part of K share its weights: their
    steps differ by their inputs alone, those of parts by their weights as well. Sums over many channels are taken as normal.
    """
    import numpy as np

    outputs, positions, channels, elements = shape
    weight_vectors = step_distribution(binomial(outputs, weight_density), array.wide)
    input_vectors = step_distribution(binomial(positions, input_density), array.high)
    numbers = np.arange(max(len(weight_vectors), len(input_vectors)))
    (mean, square), (own, own_square) = (
        (float(probabilities @ numbers[: len(probabilities)]), float(probabilities @ numbers[: len(probabilities)] ** 2))
        for probabilities in (weight_vectors, input_vectors)
    )
    weight_spread = math.sqrt(max(0.0, channels * (square - mean**2)))
    arriving = channels * mean + weight_spread * expected_normal_maximum(array.channel_parts)
    above = math.sqrt(max(0.0, channels * square * (own_square - own**2))) * expected_normal_maximum(elements)
    return min(arriving * own + above, arriving * (len(input_vectors) - 1)), arriving


@lru_cache(maxsize=1024)
def _drawn_cycles_per_step(array: Scnn, cut: Round, depth: int, weight_density: float, input_density: float) -> tuple[float, float]:
    """Mean cycles of a step on random masks of these densities, and half of the interval."""
    import numpy as np

    from trainyard.hardware.formats.bitmaps import Bitmap

    counts = np.zeros((DRAWN, 2), np.int64)
    for run, steps_and_cycles in enumerate(counts):
        seed = 2 * (array.seed + run)
        weights = Bitmap.random(cut.group, min(depth, RUN), nonzero=weight_density, seed=seed)
        inputs = Bitmap.random(cut.positions_each, min(depth, RUN), nonzero=input_density, seed=seed + 1)
        array._simulate(weights, inputs, steps_and_cycles)
    return sampled_ratio(counts[:, 1], counts[:, 0])
