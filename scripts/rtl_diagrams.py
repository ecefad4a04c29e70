"""Block diagrams of the designs, drawn from their generators: `python scripts/rtl_diagrams.py [NAME ...]` writes docs/rtl-NAME.svg.

A design is elaborated with its default parameters. Its submodules are boxes (equal ones one box, with their number), its ports are
at the sides. An arrow is a path from the outputs of one to the inputs of the other through logic and registers of the module, which
are the grey box. Nothing in a picture is placed by hand.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from trainyard.rtl.catalogue import design_of, designs
from trainyard.rtl.synthesis.macros import UNITS, black_box, units_as_macros
from trainyard.rtl.synthesis.report import rtlil_of

DOCS = Path(__file__).parents[1] / "docs"
NAME = re.compile(r"[\\$][^\s\[\]{}]+")
BOX_W, BOX_H, GAP_X, GAP_Y, MARGIN = 150, 46, 70, 22, 14
MOST_PORTS = 9
OPERATORS = {
    "$mux": "multiplexer", "$dff": "register", "$add": "adder", "$sub": "subtractor", "$mul": "multiplier", "$shift": "shifter",
    "$shr": "shifter", "$shl": "shifter", "$eq": "comparator", "$ne": "comparator", "$lt": "comparator", "$gt": "comparator",
    "$le": "comparator", "$ge": "comparator", "$mem_v2": "memory", "switch": "choice",
}  # fmt: skip
"""Operators of the module itself that are counted in its picture; gates are not."""


@dataclass
class Block:
    """Submodules of one kind: their number, and the wires at their inputs and outputs."""

    label: str
    count: int
    reads: set[str]
    writes: set[str]


def _cells(lines: list[str]) -> list[tuple[str, str, list[tuple[str, set[str]]]]]:
    """Kind, name and connections (port, wires) of every cell; processes as a cell `process`."""
    found: list[tuple[str, str, list[tuple[str, set[str]]]]] = []
    current: list[tuple[str, set[str]]] | None = None
    in_process = 0
    for line in lines:
        words = line.split()
        if not words:
            continue
        if words[0] == "cell":
            current = []
            found.append((words[1], words[2].lstrip("\\"), current))
        elif words[0] == "process":
            in_process += 1
        elif words[0] == "switch":
            in_process += 1
            found.append(("switch", "", [("in", set(NAME.findall(line)))]))
        elif words[0] == "end":
            in_process -= bool(in_process)
            current = None if not in_process else current
        elif words[0] == "assign" and in_process:
            names = NAME.findall(line)
            found.append(("assign", "", [("out", set(names[:1])), ("in", set(names[1:]))]))
        elif words[0] == "connect":
            if current is not None:
                current.append((words[1].lstrip("\\"), set(NAME.findall(" ".join(words[2:])))))
            else:
                names = NAME.findall(line)
                found.append(("assign", "", [("out", set(names[:1])), ("in", set(names[1:]))]))
    return found


def _modules(rtlil: str) -> dict[str, list[str]]:
    modules: dict[str, list[str]] = {}
    for text in re.split(r"(?m)^(?=module )", rtlil)[1:]:
        head, *lines = text.splitlines()
        modules[head.split()[1].lstrip("\\")] = lines
    return modules


def _ports(lines: list[str], way: str) -> list[str]:
    return [match[1].lstrip("\\") for line in lines if (match := re.match(rf"\s*wire .*\b{way} \d+\s+(\S+)$", line))]


def _group(name: str) -> str:
    return re.sub(r"[\d_]+$", "", re.sub(r"\d+", "", name)) or name


def blocks_of(name: str) -> tuple[list[str], list[str], list[Block], set[tuple[str, str]], Counter[str]]:
    """Inputs, outputs, blocks, arrows between them (by label; `in` and `out` are the ports), operators of the module itself."""
    component = design_of(name).build()
    used: dict[str, Any] = {}
    with ExitStack() as stack:
        if not isinstance(component, UNITS):
            used = stack.enter_context(units_as_macros())
        rtlil = rtlil_of(component)
    boxes = "".join(black_box(macro, unit) for macro, unit in used.items())
    modules = _modules(f"{rtlil}\n{boxes}")
    top = modules["top"]
    blocks: dict[str, Block] = {}
    forward: dict[str, set[str]] = defaultdict(set)
    own: Counter[str] = Counter()
    for kind, instance, connections in _cells(top):
        child = kind.lstrip("\\")
        if child in modules:
            outputs = set(_ports(modules[child], "output"))
            label = _group(instance)
            block = blocks.setdefault(label, Block(label, 0, set(), set()))
            block.count += 1
            for port, wires in connections:
                (block.writes if port in outputs else block.reads).update(wires)
            continue
        outs = {wire for port, wires in connections if port in ("out", "Y", "Q", "DATA", "RD_DATA") for wire in wires}
        ins = {wire for port, wires in connections if port not in ("out", "Y", "Q", "CLK") for wire in wires}
        for wire in ins:
            forward[wire] |= outs
        own[OPERATORS.get(kind, "")] += 1
    inputs = [port for port in _ports(top, "input") if port not in ("clk", "rst")]
    arrows = _arrows(inputs, _ports(top, "output"), blocks, forward)
    return inputs, _ports(top, "output"), list(blocks.values()), arrows, own


def _arrows(
    inputs: list[str], outputs: list[str], blocks: dict[str, Block], forward: dict[str, set[str]]
) -> set[tuple[str, str]]:  # fmt: skip
    arrows: set[tuple[str, str]] = set()
    sources = {"in": {f"\\{port}" for port in inputs}} | {label: block.writes for label, block in blocks.items()}
    for label, wires in sources.items():
        reached, pending = set(wires), list(wires)
        while pending:
            for wire in forward.get(pending.pop(), ()):
                if wire not in reached:
                    reached.add(wire)
                    pending.append(wire)
        arrows |= {(label, other) for other, block in blocks.items() if block.reads & reached}
        if {f"\\{port}" for port in outputs} & reached:
            arrows.add((label, "out"))
    return arrows


def _ranks(blocks: list[Block], arrows: set[tuple[str, str]]) -> dict[str, int]:
    """Columns from left to right: one behind the last that leads to it, loops left aside."""
    ranks = {block.label: 0 for block in blocks}
    order = sorted(ranks, key=lambda label: (("in", label) not in arrows, label))
    for label in order * len(order):  # as often as the longest way needs
        for other in order:
            one_way = (label, other) in arrows and (other, label) not in arrows
            if one_way and ranks[other] <= ranks[label] < len(order):
                ranks[other] = ranks[label] + 1
    return ranks


def drawing(name: str) -> str:
    """The picture as SVG."""
    inputs, outputs, blocks, arrows, own = blocks_of(name)
    ranks = _ranks(blocks, arrows)
    columns: dict[int, list[Block]] = defaultdict(list)
    for block in blocks:
        columns[ranks[block.label]].append(block)
    ports = [_listed(inputs), _listed(outputs)]
    rows = max([len(column) for column in columns.values()] + [1])
    height = max(rows * (BOX_H + GAP_Y), max(map(len, ports)) * 17) + 3 * MARGIN + 34
    used = max(columns, default=0) + 1
    x0 = 175
    listed = ", ".join(f"{many} {kind}{'s' * (many > 1)}" for kind, many in own.most_common(4) if kind) or "wires"
    width = x0 + max(used * (BOX_W + GAP_X), 7 * len(f"{name}: {listed}")) + 190
    places = {"in": (150.0, height / 2), "out": (width - 165.0, height / 2)}
    parts = []
    for rank, column in columns.items():
        for place, block in enumerate(column):
            x = x0 + GAP_X / 2 + rank * (BOX_W + GAP_X)
            y = (height + 20 - len(column) * (BOX_H + GAP_Y)) / 2 + place * (BOX_H + GAP_Y)
            places[block.label] = (x, y + BOX_H / 2)
            title = block.label.replace("_", " ") + (f" × {block.count}" if block.count > 1 else "")
            parts.append(f'<rect class="block" x="{x}" y="{y:.0f}" width="{BOX_W}" height="{BOX_H}" rx="5"/>')
            parts.append(f'<text x="{x + BOX_W / 2}" y="{y + BOX_H / 2 + 4:.0f}" text-anchor="middle">{escape(title)}</text>')
    lines = [_arrow(places, source, target) for source, target in sorted(arrows) if source != target]
    for anchor, x, texts in (("end", 140, ports[0]), ("start", width - 155, ports[1])):
        for place, text in enumerate(texts):
            y = height / 2 + 4 + 17 * (place - (len(texts) - 1) / 2)
            parts.append(f'<text class="port" x="{x}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>')
    frame = f'<rect class="own" x="{x0 - 10}" y="{MARGIN}" width="{width - x0 - 170}" height="{height - 2 * MARGIN}" rx="8"/>'
    label = f'<text class="own-text" x="{x0}" y="{MARGIN + 18}">{escape(name)}: {escape(listed)}</text>'
    return SVG.format(width=width, height=height, content="\n".join([frame, label, *lines, *parts]), title=escape(name))


def _arrow(places: dict[str, tuple[float, float]], source: str, target: str) -> str:
    (x1, y1), (x2, y2) = places[source], places[target]
    start, end = x1 + (BOX_W if source != "in" else 0), x2
    if end < start:  # back to an earlier column
        return f'<path class="back" d="M{start} {y1:.0f} C{start + 40} {y1 + 60:.0f} {end - 40} {y2 + 60:.0f} {end} {y2:.0f}"/>'
    middle = (start + end) / 2
    return f'<path d="M{start} {y1:.0f} C{middle} {y1:.0f} {middle} {y2:.0f} {end} {y2:.0f}"/>'


def _listed(ports: list[str]) -> list[str]:
    """Ports that differ in their number only are one line."""
    counts = Counter(_group(port) for port in ports)
    first = {_group(port): port for port in reversed(ports)}
    listed = [f"{group} ({many})" if many > 1 else first[group] for group, many in counts.items()]
    return [*listed[:MOST_PORTS], f"... {len(listed) - MOST_PORTS} more"] if len(listed) > MOST_PORTS else listed


SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" role="img" aria-label="{title}">
<style>
rect.own {{ fill: #8883; stroke: #888 }} rect.block {{ fill: #4c78a8; stroke: #2f4b6b }}
text {{ font: 13px system-ui, sans-serif; fill: #fff }} text.port, text.own-text {{ fill: #777 }}
path {{ fill: none; stroke: #888; stroke-width: 1.6; marker-end: url(#tip) }} path.back {{ stroke-dasharray: 4 3 }}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0 L8 4 L0 8 z" style="fill:#888;stroke:none;marker-end:none"/></marker></defs>
{content}
</svg>
"""


def main(names: list[str]) -> None:
    for name in names or designs():
        (DOCS / f"rtl-{name}.svg").write_text(drawing(name), encoding="utf-8")
        print(f"wrote rtl-{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
