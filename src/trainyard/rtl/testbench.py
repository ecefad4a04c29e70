"""A design for another project: its Verilog, vectors of inputs and expected outputs, and a testbench that reads them.

Three files lie beside each other: `NAME.v` (modules, the top one named like the design), `NAME.vectors` (one hexadecimal number for
each cycle: inputs in the lowest bits, then what the outputs have to be, then a bit for each of these that counts) and
`NAME_testbench.v`. The testbench is plain Verilog for any simulator; it prints PASS or the first cycles that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.files import write_text
from trainyard.rtl.catalogue import Design, Inputs, Outputs
from trainyard.rtl.verilog import ports_of, verilog

MOST_SHOWN = 10
TESTBENCH = """// Written by trainyard: {design} on {cycles} cycles of inputs drawn with seed {seed}; vectors in {vectors}.
`timescale 1ns / 1ps
module {name}_testbench;
  localparam CYCLES = {cycles}, INPUTS = {inputs}, OUTPUTS = {outputs};
  reg clk = 0;
  reg [INPUTS + 2 * OUTPUTS - 1 : 0] vectors [0 : CYCLES - 1];
  reg [INPUTS + 2 * OUTPUTS - 1 : 0] row = 0;
  wire [OUTPUTS - 1 : 0] got;
  wire [OUTPUTS - 1 : 0] wanted = row[INPUTS +: OUTPUTS];
  wire [OUTPUTS - 1 : 0] counts = row[INPUTS + OUTPUTS +: OUTPUTS];
  integer cycle, wrong = 0;

  {name} dut (
{connections}
  );

  initial begin
    $readmemh("{vectors}", vectors);
    for (cycle = 0; cycle < CYCLES; cycle = cycle + 1) begin
      row = vectors[cycle];
      #4;
      if (((got ^ wanted) & counts) !== 0) begin
        wrong = wrong + 1;
        if (wrong <= {shown}) $display("cycle %0d: outputs %h, expected %h (of bits %h)", cycle, got, wanted, counts);
      end
      #1 clk = 1;
      #5 clk = 0;
    end
    if (wrong == 0) $display("PASS: %0d cycles", CYCLES);
    else $display("FAIL: %0d of %0d cycles differ", wrong, CYCLES);
    $finish;
  end
endmodule
"""


def vector_lines(design: Design, inputs: dict[str, int], outputs: dict[str, int], cycles: int, seed: int) -> list[str]:
    """One number for each cycle."""
    stimulus = design.stimulus(cycles, seed)
    return [_number(row, wanted, inputs, outputs) for row, wanted in zip(stimulus, design.expected(stimulus), strict=True)]


def _number(row: Inputs, wanted: Outputs, inputs: dict[str, int], outputs: dict[str, int]) -> str:
    number, place = 0, 0
    for name, width in inputs.items():
        number |= row.get(name, 0) << place
        place += width
    total = sum(outputs.values())
    for name, width in outputs.items():
        if name in wanted:
            number |= wanted[name] << place | ((1 << width) - 1) << (place + total)
        place += width
    return f"{number:0{-(-(place + total) // 4)}x}"


def write_design(design: Design, path: Path, *, cycles: int = 1000, seed: int = 0) -> list[Path]:
    """Writes the three files; `path` is that of the Verilog."""
    if path.suffix not in (".v", ".sv"):
        raise BadInput(f"-o {path}: Verilog is written to a file that ends in .v, as in {path.stem or design.name}.v")
    name = design.name.replace("-", "_")
    component = design.build()
    inputs, outputs = ports_of(component)
    text = verilog(component, name=name)
    vectors, bench = path.with_suffix(".vectors"), path.with_name(f"{path.stem}_testbench.v")
    about = ", ".join(f"{key}={value}" for key, value in design.parameters.items())
    write_text(path, text)
    lines = [f"// {design.name}({about}), {design.word}", *vector_lines(design, inputs, outputs, cycles, seed)]
    write_text(vectors, "\n".join(lines) + "\n")
    write_text(bench, TESTBENCH.format(
        design=f"{design.name}({about})", cycles=cycles, seed=seed, vectors=vectors.name, name=name, inputs=sum(inputs.values()),
        outputs=sum(outputs.values()), connections=",\n".join(_connections(text, name, inputs, outputs)), shown=MOST_SHOWN,
    ))  # fmt: skip
    return [path, vectors, bench]


def _connections(text: str, name: str, inputs: dict[str, int], outputs: dict[str, int]) -> Sequence[str]:
    header = text[text.rindex(f"module {name}(") :]
    ports = header[header.index("(") + 1 : header.index(")")].replace(",", " ").split()
    lines = [f"    .{clock}({value})" for clock, value in (("clk", "clk"), ("rst", "1'b0")) if clock in ports]
    for kind, widths in (("row", inputs), ("got", outputs)):
        place = 0
        for port, width in widths.items():
            lines.append(f"    .{port}({kind}[{place} +: {width}])")
            place += width
    return lines
