"""A mapped design as one flat table of gates and flip-flops, every instance of its modules written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, NotModelled
from trainyard.kernels.gates import PINS, topological_order
from trainyard.rtl.synthesis.liberty import Cell, Library
from trainyard.rtl.synthesis.yosys import Mapped

Ints = npt.NDArray[np.int32]
ZERO, ONE, FIRST = 0, 1, 2
"""Net numbers of the constants, and the first of the others."""
CLOCK = "clk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Netlist:
    """Gates in topological order; `owner` of a gate or flip-flop is a place in `modules`, the instances that were kept apart."""

    library: Library
    kinds: tuple[Cell, ...]
    modules: tuple[str, ...]
    nets: int
    gate_kind: Ints
    gate_inputs: Ints
    gate_output: Ints
    gate_owner: Ints
    flip_flop_kind: Ints
    data: Ints
    state: Ints
    init: npt.NDArray[np.uint8]
    flip_flop_owner: Ints
    inputs: Mapping[str, Ints]
    outputs: Mapping[str, Ints]

    @property
    def cells(self) -> dict[str, int]:
        """How many of each kind, the most frequent first."""
        counts = Counter(
            {
                self.kinds[int(kind)].name: int(many)
                for kinds in (self.gate_kind, self.flip_flop_kind)
                for kind, many in _counted(kinds)
            }
        )
        return dict(counts.most_common())

    @property
    def area_um2(self) -> float:
        return float(sum(self.area_by_module.values()))

    @property
    def area_by_module(self) -> dict[str, float]:
        """Square microns of the cells of each instance that was kept apart; the rest is `top`."""
        areas = np.array([cell.area_um2 for cell in self.kinds])
        total = np.zeros(len(self.modules))
        np.add.at(total, self.gate_owner, areas[self.gate_kind])
        np.add.at(total, self.flip_flop_owner, areas[self.flip_flop_kind])
        return {name: float(total[place]) for place, name in enumerate(self.modules)}

    @property
    def leakage_nw(self) -> float:
        leakage = np.array([cell.leakage_nw for cell in self.kinds])
        return float(leakage[self.gate_kind].sum() + leakage[self.flip_flop_kind].sum())


def _counted(kinds: Ints) -> Iterator[tuple[int, int]]:
    values, counts = np.unique(kinds, return_counts=True)
    return zip(values.tolist(), counts.tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class _Module:
    """A module with its nets numbered from FIRST on."""

    nets: int
    ports: dict[str, tuple[str, Ints]]
    gate_kind: Ints
    gate_inputs: Ints
    gate_output: Ints
    flip_flop_kind: Ints
    data: Ints
    state: Ints
    init: npt.NDArray[np.uint8]
    children: list[tuple[str, str, dict[str, Ints]]]


def flat_netlist(mapped: Mapped, library: Library, top: str = "top") -> Netlist:
    """Every gate of every instance; a net that is only another name of a net is that net."""
    kinds = tuple(library.cells.values())
    number_of = {cell.name: place for place, cell in enumerate(kinds)}
    modules = {name: _module(content, mapped.modules, kinds, number_of) for name, content in mapped.modules.items()}
    if top not in modules:
        raise BadInput(f"the netlist has no module {top}")
    flat = _Flattening(modules)
    flat.place(top, np.arange(modules[top].nets, dtype=np.int32), "top")
    parts = [np.concatenate(column) for column in zip(*flat.parts, strict=True)]
    gate_kind, gate_inputs, gate_output, gate_owner, flip_flop_kind, data, state, init, flip_flop_owner = parts
    names = flat.resolved_names()
    gate_inputs, data = names[gate_inputs], names[data]
    order = topological_order(gate_inputs, gate_output, flat.nets)
    if len(order) != len(gate_kind):
        raise NotModelled(f"{len(gate_kind) - len(order)} gates form a loop without a flip-flop: cut it by a register")
    ports = modules[top].ports
    return Netlist(
        library=library, kinds=kinds, modules=tuple(flat.names), nets=flat.nets,
        gate_kind=gate_kind[order], gate_inputs=gate_inputs[order], gate_output=gate_output[order], gate_owner=gate_owner[order],
        flip_flop_kind=flip_flop_kind, data=data, state=state, init=init, flip_flop_owner=flip_flop_owner,
        inputs={name: nets for name, (direction, nets) in ports.items() if direction == "input" and name != CLOCK},
        outputs={name: names[nets] for name, (direction, nets) in ports.items() if direction == "output"},
    )  # fmt: skip


class _Flattening:
    """Instances placed one after the other; `alias` are nets that are names of other nets."""

    def __init__(self, modules: Mapping[str, _Module]) -> None:
        self.modules = modules
        self.nets = 0
        self.names: list[str] = []
        self.parts: list[tuple[npt.NDArray[Any], ...]] = []
        self.alias: list[tuple[Ints, Ints]] = []

    def place(self, kind: str, nets: Ints, name: str) -> None:
        """An instance whose nets have these numbers in the whole design."""
        module = self.modules[kind]
        self.nets = max(self.nets, int(nets.max(initial=ONE)) + 1)
        owner = len(self.names)
        self.names.append(name)
        self.parts.append((
            module.gate_kind, nets[module.gate_inputs], nets[module.gate_output], np.full(len(module.gate_kind), owner, np.int32),
            module.flip_flop_kind, nets[module.data], nets[module.state], module.init,
            np.full(len(module.flip_flop_kind), owner, np.int32),
        ))  # fmt: skip
        for child_kind, child_name, connections in module.children:
            child = self.modules[child_kind]
            inner = np.full(child.nets, -1, np.int32)
            inner[[ZERO, ONE]] = ZERO, ONE
            for port, (direction, bits) in child.ports.items():
                if direction == "input" and port in connections:
                    inner[bits] = nets[connections[port]]
            for port, (direction, bits) in child.ports.items():
                if direction != "output" or port not in connections:
                    continue
                outer = nets[connections[port]]
                fresh = inner[bits] < 0
                inner[bits[fresh]] = outer[fresh]
                again = inner[bits] != outer
                self.alias.append((outer[again], inner[bits[again]]))
            missing = inner < 0
            inner[missing] = np.arange(self.nets, self.nets + missing.sum(), dtype=np.int32)
            self.nets += int(missing.sum())
            self.place(child_kind, inner, f"{name}.{child_name}" if name != "top" else child_name)

    def resolved_names(self) -> Ints:
        names = np.arange(self.nets, dtype=np.int32)
        for outer, inner in self.alias:
            names[outer] = inner
        while not np.array_equal(names, names[names]):
            names = names[names]
        return names


def _module(
    content: Mapping[str, Any], modules: Mapping[str, Any], kinds: tuple[Cell, ...], number_of: Mapping[str, int]
) -> _Module:
    numbers: dict[int | str, int] = {"0": ZERO, "1": ONE, "x": ZERO, "z": ZERO}

    def nets_of(bits: list[int | str]) -> Ints:
        return np.array([numbers.setdefault(bit, len(numbers) - FIRST) for bit in bits], np.int32)

    ports = {name: (direction, nets_of(bits)) for name, (direction, bits) in content["ports"].items()}
    gates: list[tuple[int, list[int], int]] = []
    flip_flops: list[tuple[int, int, int]] = []
    children: list[tuple[str, str, dict[str, Ints]]] = []
    for (kind, connections), name in zip(content["cells"], content["names"], strict=True):
        if kind in modules:
            children.append((kind, name, {port: nets_of(bits) for port, bits in connections.items()}))
            continue
        if kind not in number_of:
            raise NotModelled(f"the netlist has a {kind}, which is no gate of one output and no plain flip-flop of the library")
        cell = kinds[number_of[kind]]
        (output,) = nets_of(connections[cell.output]).tolist()
        pins = [int(nets_of(connections[pin])[0]) for pin in cell.inputs]
        if cell.clock:
            flip_flops.append((number_of[kind], pins[0], output))
        else:
            gates.append((number_of[kind], pins + [ZERO] * (PINS - len(pins)), output))
    initial = ((bit, value) for bits, text in content["init"] for bit, value in zip(bits, reversed(text), strict=False))
    init_of = {numbers[bit]: value == "1" for bit, value in initial if bit in numbers and value in "01"}
    return _Module(
        nets=len(numbers) - FIRST, ports=ports,
        gate_kind=np.array([gate[0] for gate in gates], np.int32),
        gate_inputs=np.array([gate[1] for gate in gates], np.int32).reshape(-1, PINS),
        gate_output=np.array([gate[2] for gate in gates], np.int32),
        flip_flop_kind=np.array([one[0] for one in flip_flops], np.int32),
        data=np.array([one[1] for one in flip_flops], np.int32),
        state=np.array([one[2] for one in flip_flops], np.int32),
        init=np.array([init_of.get(one[2], False) for one in flip_flops], np.uint8),
        children=children,
    )  # fmt: skip
