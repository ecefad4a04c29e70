"""A design beside the simulator: the same inputs, the same outputs in the same cycle, or the first difference.

Two ways to run a design give the same table of outputs: Amaranth's own simulator (pure Python, small cases) and a compiled one from
the Verilog (`verilator.compiled`, long runs). `compare` holds the table against what the simulator's part expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import BadInput
from trainyard.rtl.catalogue import Design, Inputs, Outputs
from trainyard.rtl.verilog import ports_of

if TYPE_CHECKING:
    from amaranth.lib.wiring import Component

Runner = Callable[["Component", Sequence[Inputs]], list[dict[str, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first value that is not the expected one."""

    cycle: int
    port: str
    expected: int
    got: int

    def __str__(self) -> str:
        return f"cycle {self.cycle}: port {self.port} is {self.got:#x}, the simulator says {self.expected:#x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How many cycles and values were compared, and the first difference (None: equal)."""

    cycles: int
    values: int
    difference: Difference | None

    @property
    def equal(self) -> bool:
        return self.difference is None


def amaranth_outputs(component: Component, stimulus: Sequence[Inputs], vcd: Path | None = None) -> list[dict[str, int]]:
    """Every output port in every cycle, by Amaranth's simulator; waveforms into `vcd` where it is given."""
    return list(amaranth_cycles(component, stimulus, vcd))


def amaranth_cycles(component: Component, stimulus: Sequence[Inputs], vcd: Path | None = None) -> Iterator[dict[str, int]]:
    """The rows of `amaranth_outputs` while they are simulated; what is not asked for is not simulated."""
    from contextlib import nullcontext

    from amaranth.hdl import Fragment
    from amaranth.sim import Simulator

    inputs, outputs = ports_of(component)
    check_stimulus(component, inputs, stimulus)
    rows: list[dict[str, int]] = []
    output_signals = [(name, getattr(component, name)) for name in outputs]

    async def bench(context: Any) -> None:
        now = dict.fromkeys(inputs, 0)
        for row in stimulus:
            for name, before in now.items():
                value = row.get(name, 0)
                if value != before:
                    context.set(getattr(component, name), value)
                    now[name] = value
            rows.append({name: context.get(signal) for name, signal in output_signals})
            if clocked:
                await context.tick()
            else:
                await context.delay(1e-6)

    fragment = Fragment.get(component, None)
    clocked = bool(_domains(fragment))
    simulator = Simulator(fragment)
    if clocked:
        simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    running = True
    with simulator.write_vcd(str(vcd)) if vcd is not None else nullcontext():
        while running:
            running = simulator.advance()
            yield from rows
            rows.clear()


def _domains(fragment: Any) -> set[str]:
    """Clock domains that a circuit uses."""
    found = {domain for domain in fragment.statements if domain != "comb"}
    for part, *_ in fragment.subfragments:
        found |= _domains(part)
    return found


def check_stimulus(component: Component, inputs: dict[str, int], stimulus: Sequence[Inputs]) -> None:
    """Refuses ports that the component does not have, and values that do not fit their port."""
    owner = type(component).__name__
    for cycle, row in enumerate(stimulus):
        for name, value in row.items():
            if name not in inputs:
                raise BadInput(f"{owner}: stimulus of cycle {cycle} names '{name}', which is no input port")
            if not 0 <= value < 1 << inputs[name]:
                raise BadInput(f"{owner}: stimulus of cycle {cycle} gives {name} = {value}, which is no {inputs[name]}-bit number")


def compare(got: Sequence[Outputs], expected: Sequence[Outputs]) -> Comparison:
    """Both tables cycle by cycle; only the ports that `expected` names are compared.

    >>> compare([{"sum": 3}, {"sum": 4}], [{}, {"sum": 5}]).difference
    Difference(cycle=1, port='sum', expected=5, got=4)
    """
    if len(got) != len(expected):
        raise BadInput(f"compare: {len(got)} cycles of outputs and {len(expected)} of expected ones; they must be as many")
    values = 0
    for cycle, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        for port, value in theirs.items():
            if port not in ours:
                raise BadInput(f"compare: expected outputs of cycle {cycle} name '{port}', which is no output port")
            values += 1
            if ours[port] != value:
                difference = Difference(cycle=cycle, port=port, expected=value, got=ours[port])
                return Comparison(cycles=cycle + 1, values=values, difference=difference)
    return Comparison(cycles=len(got), values=values, difference=None)


def check_equality(
    design: Design, cycles: int, seed: int = 0, runner: Runner = amaranth_outputs, component: Component | None = None
) -> Comparison:
    """A design (or `component` in its place) against the simulator's part on `cycles` cycles of random inputs."""
    stimulus = design.stimulus(cycles, seed)
    return compare(runner(design.build() if component is None else component, stimulus), design.expected(stimulus))


def one_cycle_late(component: Component) -> Component:
    """The same circuit with a register behind every output: what an equality check has to catch."""
    from amaranth.hdl import Module
    from amaranth.lib import wiring

    class OneCycleLate(wiring.Component):
        def __init__(self) -> None:
            super().__init__(component.signature)

        def elaborate(self, platform: object) -> Module:
            m = Module()
            m.submodules.on_time = component
            inputs, outputs = ports_of(component)
            m.d.comb += [getattr(component, name).eq(getattr(self, name)) for name in inputs]
            m.d.sync += [getattr(self, name).eq(getattr(component, name)) for name in outputs]
            return m

    return OneCycleLate()
