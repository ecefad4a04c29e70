"""Twin of `mapping.between_layers.row_bands`: the bands of a block on real numbers, one column of one channel.

A scratchpad holds rows by name. Every row that a band reads must be on chip or, for an input of the block, in DRAM; what is not
kept for the next band is thrown away. Windows are added up tap by tap, so that nothing is known of halos in advance.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainyard.ir import Convolution
from trainyard.mapping.between_layers.row_bands import BlockBands
from trainyard.mapping.between_layers.rows import RowWork


@dataclass(frozen=True)
class Layer:
    """A product of a convolution along one axis: `image` and `gradient` are tensors, `result` what it makes."""

    body: Convolution
    kernel: np.ndarray
    image: int
    gradient: int
    result: int

    def taps(self) -> list[tuple[int, int, int]]:
        """(output row, tap, input row) of all pairs inside the image."""
        body = self.body
        return [
            (out, tap, row)
            for out in range(body.out_size[0])
            for tap in range(body.kernel[0])
            if 0 <= (row := out * body.stride[0] + tap * body.dilation[0] - body.padding[0]) < body.size[0]
        ]

    def whole(self, values: dict[int, np.ndarray]) -> np.ndarray:
        product, body = self.body.product, self.body
        if product == "forward":
            result = np.zeros(body.out_size[0])
            for out, tap, row in self.taps():
                result[out] += self.kernel[tap] * values[self.image][row]
        elif product == "grad_input":
            result = np.zeros(body.size[0])
            for out, tap, row in self.taps():
                result[row] += self.kernel[tap] * values[self.gradient][out]
        else:
            result = np.zeros(body.kernel[0])
            for out, tap, row in self.taps():
                result[tap] += values[self.image][row] * values[self.gradient][out]
        return result


@dataclass
class BandReplay:
    """Runs the bands of `layers` (by the numbers of their Works); `reads` counts the rows that came from DRAM."""

    layers: dict[int, Layer]
    works: dict[int, RowWork]
    bands: BlockBands
    keeps_overlap: bool
    grad_input: str
    dram: dict[int, np.ndarray]
    on_chip: dict[int, dict[int, float]] = field(default_factory=dict)
    results: dict[int, dict[int, float]] = field(default_factory=dict)
    sums: dict[int, np.ndarray] = field(default_factory=dict)
    unfinished: dict[int, dict[int, float]] = field(default_factory=dict)
    reads: dict[int, int] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        for band in range(len(next(iter(self.bands.end.values())))):
            for base in self.dram:
                rows = self.bands.tensors[base]
                for row in range(rows.begin[band], rows.end[band]):
                    self.on_chip.setdefault(base, {})[row] = self.dram[base][row]
                    self.reads[base] = self.reads.get(base, 0) + 1
            for number in sorted(self.layers):
                self._work(number, band)
            for base, rows in self.on_chip.items():
                tensor = self.bands.tensors[base]
                assert len(rows) <= tensor.window
                later = tensor.lowest[band + 1] if self.keeps_overlap and band + 1 < len(tensor.end) else tensor.rows
                self.on_chip[base] = {row: value for row, value in rows.items() if row >= later}
                assert len(self.on_chip[base]) <= tensor.overlap

    def _work(self, number: int, band: int) -> None:
        layer, begin, end = self.layers[number], self.bands.begin[number][band], self.bands.end[number][band]
        product = layer.body.product
        done = self.computed.setdefault(number, 0)
        if product == "grad_weight":
            total = self.sums.setdefault(layer.result, np.zeros(layer.body.kernel[0]))
            for out, tap, row in layer.taps():
                if begin <= out < end:
                    total[tap] += self.on_chip[layer.image][row] * self.on_chip[layer.gradient][out]
            return
        rows: dict[int, float] = {}
        if product == "forward":
            rows = dict.fromkeys(range(begin, end), 0.0)
            for out, tap, row in layer.taps():
                if begin <= out < end:
                    rows[out] += layer.kernel[tap] * self.on_chip[layer.image][row]
        elif self.grad_input == "col2im" and self.keeps_overlap:
            through = self.bands.product_rows[number][band]
            partial = self.unfinished.setdefault(number, {})
            for out, tap, row in layer.taps():
                if done <= out < done + through:
                    partial[row] = partial.get(row, 0.0) + layer.kernel[tap] * self.on_chip[layer.gradient][out]
            self.computed[number] += int(through)
            rows = {row: partial.pop(row, 0.0) for row in range(begin, end)}
            assert len(partial) <= self.bands.unfinished[number]
        else:
            rows = dict.fromkeys(range(begin, end), 0.0)
            for out, tap, row in layer.taps():
                if begin <= row < end:
                    rows[row] += layer.kernel[tap] * self.on_chip[layer.gradient][out]
        self.on_chip.setdefault(layer.result, {}).update(rows)
        self.results.setdefault(layer.result, {}).update(rows)
