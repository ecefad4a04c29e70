"""Writes docs/rtl.md from the catalogue of designs and from what `make rtl` measured (src/trainyard/papers/from_gates.json)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rtl_explained import explained

from trainyard.arrays.tensordash.components import CORE, MUX, SCHEDULER, STAGING
from trainyard.hardware.tables.library_scaling import area_at, delay_at
from trainyard.papers import gates
from trainyard.papers.gates import content, figure, measurement
from trainyard.papers.ledger import claims, number
from trainyard.papers.pages import markdown_table
from trainyard.rtl.catalogue import designs, parameter_rows

DOCS = Path(__file__).parents[1] / "docs"
NEAR = 0.25
"""What a ratio from gates may differ from the paper's before it has to be explained."""
HEAD = """# The mechanisms as hardware

Every mechanism of three papers is here a second time, as a circuit: a generator in [Amaranth](https://amaranth-lang.org) with the
simulator's parameters, held against the simulator's own part cycle by cycle. Synthesis then counts its gates, finds its slowest
path, and runs it gate by gate to count toggles. No constant is fitted. This page is written by `make rtl`.

```sh
trainyard rtl --list                    # the designs
trainyard rtl fan --lanes 32            # the parameters of one
```

`trainyard rtl fan --lanes 32 -o fan.v` writes Verilog for another project, with vectors and a testbench beside it, and
`trainyard rtl fan --lanes 8 --gates` synthesises it. Both need `pip install 'trainyard[rtl]'`, the latter also Yosys and the
library: `apt-get install --no-install-recommends yosys qflow-tech-osu018`.
"""
NODES = {"sigma": (28, 500e6), "tensordash": (65, 500e6), "direct": (28, 350e6)}
"""Node of the paper, and the clock: TensorDash's is printed (Table III), SIGMA's and DIRECT's are assumed."""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return markdown_table(head, [[str(cell) for cell in row] for row in rows])


def catalogue() -> Iterator[str]:
    compared = content().get("equality", {})
    rows = []
    for name, design in designs().items():
        run = compared.get(name)
        equal = f"{run['cycles']:,} cycles, {run['values']:,} values" if run else "not run"
        options = ", ".join(f"{key} {value}" for key, value, _ in parameter_rows(design) if value != "")
        rows.append((f"[{name}](#{name})", design.word, options, equal))
    yield "## The designs\n"
    yield (
        "Equal to the simulator on random inputs, in a simulation that Verilator compiles from the Verilog. The comparison can "
        "fail: every design one cycle late, with the inputs of any multiplexer swapped or with any register dropped is caught "
        "(`tests/rtl/test_mutations.py`), or the solver below finds no input that tells it from the original.\n"
    )
    yield table(("design", "what it is", "parameters", "equal on"), rows)


def properties() -> Iterator[str]:
    found = content().get("formal", [])
    if not found:
        return
    yield "## What is proved\n"
    yield "By a SAT solver: for every input of a circuit without registers, for every sequence of inputs up to a bound of others.\n"
    yield table(("design", "sizes", "for", "property"), [(one["design"], one["sizes"], one["reach"], one["says"]) for one in found])


def ratios() -> Iterator[str]:
    yield "## Against the papers' figures\n"
    yield (
        "Ratios compare circuits of the same library with the same arithmetic units. Absolute figures (mm2, W, mW) are scaled from "
        "0.18 um by the equations of Stillmaker and Baas (2017). Where a figure is farther than 25 % from the paper's, what was "
        "counted is said.\n"
    )
    rows = []
    for claim in claims():
        counted = figure(claim.id)
        if counted is None:
            continue
        paper = claim.value[-1] if isinstance(claim.value, tuple) else claim.value
        assert not isinstance(paper, str)
        ratio = counted.value / paper
        within = "yes" if abs(ratio - 1) <= NEAR else "no"
        note = " ".join(filter(None, (counted.note, "" if within == "yes" else explained(claim.id))))
        rows.append((claim.id, number(paper), number(counted.value), f"{ratio:.2f}", within, claim.unit, note))
    yield table(("claim", "paper", "from gates", "ratio", "within 25 %", "unit", "what was counted"), rows)


def networks() -> Iterator[str]:
    rows = []
    for lanes in gates.sizes("chain"):
        if not all(f"{kind}/{lanes}" in content()["measurements"] for kind in ("fan", "art")):
            continue
        cells: list[object] = [lanes]
        for kind in ("fan", "art"):
            cells.append(f"{100 * (gates.network_area(kind, lanes) / gates.network_area('chain', lanes) - 1):+.1f} %")
            cells.append(f"{100 * (gates.network_energy(kind, lanes) / gates.network_energy('chain', lanes) - 1):+.1f} %")
            cells.append(f"{gates.edp_over_chain(kind, lanes):.2f}")
        rows.append(cells)
    if rows:
        yield "### FAN and ART over a linear chain\n"
        yield table(("lanes", "FAN area", "FAN energy", "FAN EDP", "ART area", "ART energy", "ART EDP"), rows)


def benes() -> Iterator[str]:
    known = [size for size in gates.sizes("benes") if f"benes/{size}" in content()["measurements"]]
    rows = []
    for ports in known:
        area = measurement(f"benes/{ports}")["area_um2"]
        per_switch = area / (ports * (2 * math.log2(ports) + 1))
        rows.append((ports, f"{area:,.0f}", f"{per_switch:,.0f}", f"{measurement(f'benes/{ports}')['critical_path_ns']:.2f}"))
    if rows:
        yield "### The Benes network grows as N log N\n"
        yield table(("ports", "area, um2", "um2 for each of N (2 log2 N + 1) switches", "slowest path, ns"), rows)


TABLE_IV = {
    "cores": CORE,
    "schedulers and B multiplexers": SCHEDULER,
    "A multiplexers": MUX,
    "staging buffers": STAGING,
}


def tile() -> Iterator[str]:
    known = content()["measurements"]
    if "tile/fp16" not in known:
        return
    yield "### TensorDash's Table IV, in per cent of the cores\n"
    areas, energies = gates.tile_parts("tile/fp16"), gates.tile_energies("tile/fp16")
    rows = [
        (
            name,
            f"{100 * part.mm2 / CORE.mm2:.1f}",
            f"{100 * areas[name] / areas['cores']:.1f}",
            f"{100 * part.milliwatts / CORE.milliwatts:.1f}",
            f"{100 * energies[name] / energies['cores']:.1f}",
        )
        for name, part in TABLE_IV.items()
    ]
    yield table(("part", "area, paper", "from gates", "power, paper", "from gates"), rows)
    yield "### Area against depth, lanes and format\n"
    variants: list[tuple[str, ...]] = []
    for key, found in known.items():
        if key.startswith("tile/"):
            added = 100 * (found["area_um2"] / found["area_by_part"]["element"] - 1)
            energy = 100 * (gates.tile_energy(key) - 1)
            variants.append((_tile_name(found["parameters"]), f"{added:.1f}", f"{energy:.1f}", f"{found['critical_path_ns']:.1f}"))
    yield table(("tile", "added parts, % of the cores", "their energy, % (half zeros)", "slowest path, ns"), variants)


def _tile_name(parameters: Mapping[str, Any]) -> str:
    return f"{parameters['number']}, {parameters['lanes']} lanes, {parameters['depth']} deep"


LEFT_OUT = """## What the papers' figures leave out

- **FAN** (Fig. 6a draws no flip-flops of the forwarding links, Fig. 6c no cost of its comparators): a link that crosses
  levels needs a register at each, or two vectors meet; they are most of what FAN adds. The bypass of level 0 needs a second
  register, and every reader to its right a multiplexer. Comparators and select registers add {routing} % of FAN's area at 512
  lanes.
- **ART** is counted by its paper as adders of three inputs. Two adders of two inputs, one behind the other, also double the
  path of a level: the clock is half as fast, or a level takes two cycles. Multiplexers gate each input.
- **The Benes network** is one cycle of 2 log2 N + 1 multiplexers and their fan-out; the paper's select bits come from a
  router that it does not price. Wires, which dominate a real one, are not in a count of cells.
- **TensorDash**'s zero detectors, the control that shifts and refills the buffers and the enable of every row are in the
  figures here; Table IV names none of them. Its transposers are not.
- **DIRECT** prints no structure: what is counted is an AGAU of 8 inputs of 256 bits and an arbiter for 256 clusters.
"""


def clocks() -> Iterator[str]:
    rows = []
    for key, found in content()["measurements"].items():
        paper = paper_of(key)
        if paper is None:
            continue
        nm, hertz = NODES[paper]
        scaled, period = delay_at(found["critical_path_ns"], nm), 1e9 / hertz
        holds = "yes" if scaled <= period else f"no: {math.ceil(scaled / period)} stages"
        worst = "; ".join(found["path"][-3:])
        rows.append((key, f"{found['critical_path_ns']:.2f}", nm, f"{scaled:.2f}", f"{period:.2f}", holds, worst))
    yield "## The slowest path, and whether the paper's clock holds it\n"
    yield (
        "Scaled to the paper's node by the delay of its gates; wires would add to it. SIGMA's and DIRECT's clocks are not printed "
        "and assumed. Where it does not fit, so many stages of equal length would.\n"
    )
    yield table(("circuit", "0.18 um, ns", "node, nm", "scaled, ns", "period, ns", "in one cycle", "its last part"), rows)


def paper_of(key: str) -> str | None:
    first = key.partition("/")[0]
    if first in ("agau", "dsc"):
        return "direct"
    if first in ("tile", "dense", "scheduler"):
        return "tensordash"
    return "sigma"


def pictures() -> Iterator[str]:
    yield "## Block diagrams\n"
    yield "Drawn from the generators with their default parameters: boxes are submodules, arrows are paths between them.\n"
    for name, design in designs().items():
        yield f"### {name}\n\n{design.word}.\n"
        if (DOCS / f"rtl-{name}.svg").exists():
            yield f"![Block diagram of {name}](rtl-{name}.svg)\n"


def measured_with() -> Iterator[str]:
    head = content()
    yield "## How it is measured\n"
    yield (
        f"Yosys {head['tools']['yosys']} with abc maps every circuit to {head['library']['name']} "
        f"({head['library']['node_nm']} nm, {head['library']['supply_v']:g} V, typical corner) for a clock of "
        f"{head['mapped_for_ns']:g} ns. "
        "Floating-point units are synthesised once and shared by all designs, for abc's result varies by a tenth with the names of "
        "wires. Areas are those of the cells' layouts: the liberty file has two misprints. The slowest path is from a static "
        "timing analysis of our own with the library's tables; on combinational units it agrees with abc's `stime` within 1 %. The "
        "mapped netlist runs gate by gate on inputs that keep it busy, its outputs are compared with the simulator once "
        f"more, and every toggle takes the library's internal energy and half of C V^2. Not counted: {head['left_out']}.\n"
    )
    total = sum(one["gates"] + one["flip_flops"] for one in head["measurements"].values())
    largest = max(head["measurements"].values(), key=lambda one: one["area_um2"])
    yield (
        f"{len(head['measurements'])} circuits, {total:,} cells in all; the largest has {largest['gates']:,} gates, "
        f"{largest['area_um2'] / 1e6:.1f} mm2 in 0.18 um and {area_at(largest['area_um2'], 28) / 1e6:.2f} at 28 nm.\n"
    )


def page() -> str:
    routing = "some"
    if "fan/512" in content()["measurements"]:
        found = measurement("fan/512")
        routing = f"{100 * (found['area_um2'] / found['area_by_part']['tree'] - 1):.0f}"
    sections = (catalogue, properties, ratios, networks, benes, tile)
    body = [line for section in sections for line in section()]
    return "\n".join([HEAD, *body, LEFT_OUT.format(routing=routing), *clocks(), *measured_with(), *pictures()])


if __name__ == "__main__":
    (DOCS / "rtl.md").write_text(page(), encoding="utf-8")
    print("wrote rtl.md")
