"""Long runs of a design: its Verilog compiled by Verilator with a test bench that reads inputs and writes outputs as 32-bit words.

The test bench is generated here. For each cycle it reads the words of every input port (lowest word first, ports in the order of
the signature), settles the logic, writes the words of every output port, and gives one clock edge.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainyard.errors import BadInput, TrainyardError
from trainyard.rtl.catalogue import Inputs
from trainyard.rtl.equality import check_stimulus
from trainyard.rtl.verilog import ports_of, verilog

if TYPE_CHECKING:
    from amaranth.lib.wiring import Component

SECONDS = 600
"""Longest compilation or run."""
TOOLS = ("verilator", "g++", "make")


class MissingTool(TrainyardError):
    """A program of the operating system that is not installed."""


def missing_tools() -> list[str]:
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def require_tools() -> None:
    """One line that says what to install."""
    if missing := missing_tools():
        raise MissingTool(f"compiled simulation needs {', '.join(missing)}: apt-get install verilator g++ make")


def compiled_outputs(component: Component, stimulus: Sequence[Inputs]) -> list[dict[str, int]]:
    """Every output port in every cycle; the same table as `equality.amaranth_outputs`."""
    require_tools()
    with tempfile.TemporaryDirectory(prefix="trainyard-rtl-") as folder:
        return CompiledDesign(component, Path(folder)).outputs(stimulus)


class CompiledDesign:
    """A design compiled into `folder` once, to be run many times."""

    def __init__(self, component: Component, folder: Path) -> None:
        require_tools()
        self._component, self._folder = component, folder
        self._inputs, self._outputs = ports_of(component)
        text = verilog(component, name="top")
        clock = _has_clock(text)
        (folder / "top.v").write_text(text)
        (folder / "bench.cpp").write_text(_bench(self._inputs, self._outputs, clock))
        command = ["verilator", "--cc", "--exe", "--build", "-O3", "--x-assign", "0", "--x-initial", "0", "-Wno-fatal", "-Wno-lint"]
        _run([*command, "-CFLAGS", "-O1", "--top-module", "top", "--Mdir", "model", "-o", "bench", "top.v", "bench.cpp"], folder)

    def outputs(self, stimulus: Sequence[Inputs]) -> list[dict[str, int]]:
        check_stimulus(self._component, self._inputs, stimulus)
        (self._folder / "inputs.bin").write_bytes(_packed(stimulus, self._inputs))
        _run([str(self._folder / "model" / "bench"), "inputs.bin", "outputs.bin", str(len(stimulus))], self._folder)
        return _unpacked((self._folder / "outputs.bin").read_bytes(), self._outputs, len(stimulus))


def _has_clock(text: str) -> bool:
    header = text[text.rindex("module top(") :]
    return "clk" in header[: header.index(");")].replace(",", " ").replace("(", " ").split()


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BadInput(f"{Path(command[0]).name} took longer than {SECONDS} s: try a smaller design") from None
    if done.returncode:
        raise BadInput(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[:2000]}")


def words(width: int) -> int:
    """32-bit words of a port."""
    return -(-width // 32)


def _packed(stimulus: Sequence[Inputs], inputs: dict[str, int]) -> bytes:
    return b"".join(row.get(name, 0).to_bytes(4 * words(width), "little") for row in stimulus for name, width in inputs.items())


def _unpacked(data: bytes, outputs: dict[str, int], cycles: int) -> list[dict[str, int]]:
    names = list(outputs)
    if all(width <= 32 for width in outputs.values()):
        rows = np.frombuffer(data, dtype="<u4").reshape(cycles, len(names)).tolist()
        return [dict(zip(names, row, strict=True)) for row in rows]
    table, at = [], 0
    for _ in range(cycles):
        row = {}
        for name, width in outputs.items():
            end = at + 4 * words(width)
            row[name], at = int.from_bytes(data[at:end], "little"), end
        table.append(row)
    return table


BENCH = """\
#include "Vtop.h"
#include "verilated.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>

static uint32_t next(FILE* file) {{
    uint32_t word = 0;
    if (fread(&word, 4, 1, file) != 1) exit(3);
    return word;
}}

static void put(FILE* file, uint32_t word) {{
    if (fwrite(&word, 4, 1, file) != 1) exit(4);
}}

int main(int, char** argv) {{
    VerilatedContext context;
    Vtop top{{&context}};
    FILE* inputs = fopen(argv[1], "rb");
    FILE* outputs = fopen(argv[2], "wb");
    if (!inputs || !outputs) return 2;
    const long cycles = atol(argv[3]);
{reset}
    for (long cycle = 0; cycle < cycles; ++cycle) {{
{read}
        top.eval();
{write}
{edge}
    }}
    top.final();
    fclose(inputs);
    return fclose(outputs);
}}
"""


def _bench(inputs: dict[str, int], outputs: dict[str, int], clock: bool) -> str:
    """C++ of the test bench; Verilator keeps up to 64 bits in one integer, more in an array of words."""
    read, write = [], []
    for name, width in inputs.items():
        if width <= 32:
            read.append(f"top.{name} = next(inputs);")
        elif width <= 64:
            read.append(f"top.{name} = next(inputs); top.{name} |= (uint64_t)next(inputs) << 32;")
        else:
            read.append(f"for (int word = 0; word < {words(width)}; ++word) top.{name}[word] = next(inputs);")
    for name, width in outputs.items():
        if width <= 32:
            write.append(f"put(outputs, top.{name});")
        elif width <= 64:
            write.append(f"put(outputs, (uint32_t)top.{name}); put(outputs, (uint32_t)(top.{name} >> 32));")
        else:
            write.append(f"for (int word = 0; word < {words(width)}; ++word) put(outputs, top.{name}[word]);")
    pad = "\n".join
    return BENCH.format(
        read=pad(f"        {line}" for line in read),
        write=pad(f"        {line}" for line in write),
        reset="    top.clk = 0; top.rst = 0;" if clock else "",
        edge="        top.clk = 1; top.eval(); top.clk = 0;" if clock else "",
    )
