"""A netlist in plain Python: values cycle by cycle and arrival times by recursion, for `trainyard.kernels.gates`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from trainyard.rtl.synthesis.liberty import Library
from trainyard.rtl.synthesis.netlist import ONE, ZERO, Netlist
from trainyard.rtl.synthesis.timing import SHARP_NS


def run(netlist: Netlist, stimulus: Sequence[dict[str, int]]) -> tuple[list[int], list[dict[str, int]]]:
    """Toggles of every net, and the outputs of every cycle."""
    values = [0] * netlist.nets
    values[ONE] = 1
    for net, bit in zip(netlist.state, netlist.init, strict=True):
        values[net] = int(bit)
    toggles = [0] * netlist.nets
    outputs: list[dict[str, int]] = []
    for cycle, row in enumerate(stimulus):
        before = list(values)
        for name, nets in netlist.inputs.items():
            for bit, net in enumerate(nets):
                values[net] = row.get(name, 0) >> bit & 1
        for kind, pins, out in zip(netlist.gate_kind, netlist.gate_inputs, netlist.gate_output, strict=True):
            place = sum(values[net] << pin for pin, net in enumerate(pins))
            values[out] = netlist.kinds[kind].truth >> place & 1
        settled = list(values)
        outputs.append(
            {name: sum(values[net] << bit for bit, net in enumerate(nets)) for name, nets in netlist.outputs.items()}
        )  # fmt: skip
        if cycle:
            toggles = [count + (a != b) for count, a, b in zip(toggles, before, settled, strict=True)]
        if cycle + 1 < len(stimulus):
            for data, state in zip(netlist.data, netlist.state, strict=True):
                values[state] = settled[data]
                toggles[state] += settled[state] != settled[data]
    return toggles, outputs


def latest(netlist: Netlist, library: Library, load: Sequence[float]) -> float:
    """The time at which the last net of a design without flip-flops settles."""
    driver = {int(net): gate for gate, net in enumerate(netlist.gate_output)}

    @cache
    def settled(net: int, edge: int) -> tuple[float, float]:
        if net in (ZERO, ONE):
            return -1.0, 0.0
        if net not in driver:
            return 0.0, SHARP_NS
        gate = driver[net]
        cell = netlist.kinds[netlist.gate_kind[gate]]
        best = (-1.0, 0.0)
        for pin, name in enumerate(cell.inputs):
            arc = cell.arcs[name]
            for before in (0, 1):
                if (arc.sense == 1 and before != edge) or (arc.sense == -1 and before == edge):
                    continue
                time, slew = settled(int(netlist.gate_inputs[gate, pin]), before)
                if time >= 0:
                    end = time + arc.delay[edge].at(load[net], slew)
                    best = max(best, (end, arc.transition[edge].at(load[net], slew)))
        return best

    return max(settled(int(net), edge)[0] for nets in netlist.outputs.values() for net in nets for edge in (0, 1))
