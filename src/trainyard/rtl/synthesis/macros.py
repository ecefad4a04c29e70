"""Arithmetic units as macros: every adder and multiplier of one kind is the same netlist, in whichever design it stands.

abc's result depends on the order and the names of what it reads: the same FP32 adder came out as 42,000 to 50,000 square microns in
three designs. Ratios of designs would be ratios of this luck. So a floating-point unit is synthesised once by itself, its ports in
the order of its signature, with the steadiest of abc's mappers (`yosys.STEADY_SCRIPT`), and designs are synthesised around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from amaranth.hdl import ClockSignal, Instance, ResetSignal

from trainyard.rtl.arithmetic.adder import FloatAdder
from trainyard.rtl.arithmetic.formats import FloatFormat
from trainyard.rtl.arithmetic.multiplier import FloatMultiplier
from trainyard.rtl.verilog import ports_of

if TYPE_CHECKING:
    from amaranth.lib.wiring import Component

UNITS = (FloatAdder, FloatMultiplier)


def macro_name(unit: Any) -> str:
    """A name for all that the unit's circuit depends on.

    >>> from trainyard.rtl.arithmetic.formats import format_of
    >>> macro_name(FloatMultiplier(format_of("bf16"), format_of("fp32"), stages=1))
    'FloatMultiplier_e8m7_e8m23_1'
    """
    formats = [unit._kind, *([unit._result] if isinstance(unit, FloatMultiplier) else [])]
    return "_".join((type(unit).__name__, *map(_format_name, formats), str(unit._stages)))


def _format_name(kind: FloatFormat) -> str:
    return f"e{kind.exponent_bits}m{kind.fraction_bits}{'' if kind.subnormals else 'flush'}"


@contextmanager
def units_as_macros() -> Iterator[dict[str, Component]]:
    """Inside, a unit that is elaborated becomes an instance of its macro; a unit of each kind is entered under the macro's name."""
    used: dict[str, Component] = {}

    def instance(unit: Any, platform: object) -> Instance:
        name = macro_name(unit)
        used.setdefault(name, unit)
        inputs, outputs = ports_of(unit)
        connections = {f"i_{port}": getattr(unit, port) for port in inputs} | {f"o_{port}": getattr(unit, port) for port in outputs}
        if unit._stages:
            connections |= {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        return Instance(name, **connections)

    with ExitStack() as patches:
        for unit in UNITS:
            patches.enter_context(patch.object(unit, "elaborate", instance))
        yield used


def black_box(name: str, unit: Any) -> str:
    """The macro's ports as RTLIL, for a synthesis around it."""
    inputs, outputs = ports_of(unit)
    clock = {"clk": 1, "rst": 1} if unit._stages else {}
    ports = [("input", port, width) for port, width in {**inputs, **clock}.items()]
    ports += [("output", port, width) for port, width in outputs.items()]
    wires = "".join(f"  wire width {width} {way} {place} \\{port}\n" for place, (way, port, width) in enumerate(ports, 1))
    return f"attribute \\blackbox 1\nmodule \\{name}\n{wires}end\n"
