"""Writes docs/zoo.md from the catalogue and the shipped steps."""

from __future__ import annotations

from pathlib import Path

from trainyard.units import show
from trainyard.workloads import zoo

PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"
HEAD = """# The zoo

Every model is written here from its publication and captured as a training step (forward, loss, backward, update) that ships in the
package; `ty.zoo.load(name, batch=n)` needs no torch. Written by `make pages`.

*attention* is the form of its attention. `sdpa`: separate products, as the papers of the accelerators describe it; the kernel is
left open, and a GPU fuses them. `eager`: separate products that the model writes out. `efficient`: one fused kernel, which torch
takes in fp32 on CUDA; its scores are never written to memory. Your own model is captured as torch would run it
([`ty.capture`](api.md), `attention=`).

| name | parameters | published | batch | ops | MACs a step | attention | source |
|---|---|---|---|---|---|---|---|
"""


def row(name: str) -> str:
    entry, step = zoo.entry(name), zoo.load(name)
    published = show(entry.published, "") if entry.published else "-"
    note = f" ({entry.note})" if entry.note else ""
    size, work = show(entry.parameters, ""), show(step.macs, "")
    forms = ", ".join(dict.fromkeys(step.attention.values())) or "-"
    cells = [name, size, published, str(entry.batch), str(len(step.ops)), work, forms, entry.source + note]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(HEAD + "\n".join(map(row, zoo.names())) + "\n", encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(zoo.names())} models")
