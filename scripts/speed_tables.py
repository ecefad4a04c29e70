"""The page on speed and accuracy: tables from what scripts/speed_page.py measured, from kept measurements, and from small runs.

What is held against a twin or an oracle here is drawn anew with fixed seeds; tests hold far more of it.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CASES = 40
HEAD = """# How fast, how accurate

Written by `scripts/speed_page.py`: quick forms of the scripts in `benchmarks/`, each beside a peer or a plain twin of the same run;
`benchmarks/README.md` has the whole list and what each is held to. Times are of the machine that wrote this page, and others may
have been at work on it: rates of a core are of CPU time, the rest is wall time. A ratio to something that was measured in the same
run is worth more than the number beside it. For 10,000 points the project asks for minutes; ten are taken as the target.
"""


def page(kept: Mapping[str, Any]) -> str:
    cores = sorted({one["cores"] for one in kept.values() if "cores" in one})
    loads = [one["load"] for one in kept.values() if "load" in one]
    least, most = min(loads, default=0), max(loads, default=0)
    told = f"Measured on {' or '.join(map(str, cores)) or 'no'} cores under a load of {least:g} to {most:g} processes."
    rows = [row for one in kept.values() for row in one["rows"]]
    speed = [row for row in rows if not row["what"].startswith("accuracy: ")]
    missed = [row for row in speed if verdict(row) == "missed"]
    judged = sum(verdict(row) != "" for row in speed)
    summary = f"{judged - len(missed)} of {judged} targets are reached."
    if missed:
        summary += " Missed: " + "; ".join(row["what"] for row in missed) + "."
    far = [*twins(), *(accuracy_cells(row) for row in rows if row not in speed), *gpu()]
    return "\n".join(
        (
            HEAD, told, "\n## How fast\n", summary, "",
            table(("what", "measured", "target", "", "beside it", "times as fast"), map(speed_cells, speed)),
            "## How accurate\n",
            "Against what each part is held, and how far it is away. *Equal* is exact equality; tests draw many more cases.", "",
            table(("what", "against", "difference"), far),
            ledger(),
        )
    )  # fmt: skip


def table(head: Sequence[str], rows: Any) -> str:
    lines = [
        " | ".join(head),
        "|".join(["---"] * len(head)),
        *(" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows),
    ]
    return "".join(f"| {line} |\n" if not line.startswith("---") else f"|{line}|\n" for line in lines)


def verdict(row: Mapping[str, Any]) -> str:
    if row["target"] is None:
        return ""
    return "reached" if (row["value"] <= row["target"] if row["most"] else row["value"] >= row["target"]) else "missed"


def number(value: float) -> str:
    """Three digits, large ones with a power.

    >>> number(1.5e9), number(0.0123), number(512.4), number(30.0)
    ('1.5e9', '0.0123', '512', '30')
    """
    if value and abs(value) >= 1e6:
        return f"{value:.2e}".replace("e+0", "e").replace("e+", "e").replace(".00e", "e").replace("0e", "e")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def speed_cells(row: Mapping[str, Any]) -> Iterator[str]:
    sign = "≤" if row["most"] else "≥"
    yield from (row["what"], f"{number(row['value'])} {row['unit']}", f"{sign} {number(row['target'])}" if row["target"] else "")
    yield from (verdict(row), row["beside"], number(row["ratio"]) if row["ratio"] else "")


def accuracy_cells(row: Mapping[str, Any]) -> tuple[str, str, str]:
    far = "equal" if row["value"] == 0 else f"{row['value']:+.2f} {row['unit']}"
    return row["what"].removeprefix("accuracy: "), row["beside"], far


def twins() -> Iterator[tuple[str, str, str]]:
    """Closed forms against what is executed, expectations from densities against masks."""
    import numpy as np

    from trainyard.arrays import Sigma, Systolic, TensorDash
    from trainyard.ir import Density, MatMul
    from trainyard.mapping.gradient_order.execution import execute
    from trainyard.mapping.gradient_order.scratchpad import traffic

    rng = np.random.default_rng(8)
    equal = 0
    for _ in range(CASES):
        m, n, k, rows, columns = (int(size) for size in rng.integers(1, 14, 5))
        array = Systolic(rows=rows, columns=columns, dataflow=str(rng.choice(["ws", "os", "is"])))  # type: ignore[arg-type]
        found = array.execute(rng.standard_normal((m, k)), rng.standard_normal((k, n)))
        equal += found.cycles == array.tile_cycles(m, n, k)
    yield "systolic array: cycles of the closed form", "every cell in every cycle", same(equal)

    equal = 0
    for _ in range(CASES):
        m, n, k = (int(size) for size in rng.integers(2, 24, 3))
        tile = (min(m, 4), min(n, 5), min(k, 3))
        x, w, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
        order = str(rng.choice(["sequential", "interleaved", "dx_major", "dw_major"]))
        ran = execute(x, w, dy, tile=tile, capacity_bytes=512, order=order)  # type: ignore[arg-type]
        model = traffic(MatMul(m, n, k), tile=tile, capacity_bytes=512, element_bytes=4, order=order)  # type: ignore[arg-type]
        right = np.allclose(ran.dx, dy @ w.T, atol=1e-4) and np.allclose(ran.dw, x.T @ dy, atol=1e-4)
        equal += right and sum(ran.bytes.values()) == model.total_bytes
    yield "gradient orders: bytes moved", "tiles of real numbers, moved one by one; dX and dW are numpy's", same(equal)

    op, worst = MatMul(256, 192, 512), {"TensorDash": 0.0, "SIGMA": 0.0}
    for zeros in (0.3, 0.6, 0.9):
        mask = rng.random((op.M, op.K)) >= zeros
        dash, sigma = TensorDash(), Sigma()
        streams = mask.reshape(op.M // dash.rows, dash.rows, op.K // dash.lanes, dash.lanes)
        exact = sum(dash.schedule(group) for group in streams) / (len(streams) * op.K / dash.lanes)
        expected = dash.cost(op, a=Density(1 - zeros)).cycles / dash.baseline.cost(op).cycles
        worst["TensorDash"] = max(worst["TensorDash"], abs(expected / exact - 1))
        close = sigma.cost(op, a=Density(1 - zeros)).cycles / sigma.cost(op, a=mask).cycles
        worst["SIGMA"] = max(worst["SIGMA"], abs(close - 1))
    for name, far in worst.items():
        yield f"{name}: cycles expected from a density, 30 to 90 % zeros", "cycles of a drawn mask", f"at most {100 * far:.1f} %"


def same(count: int) -> str:
    return f"equal in {count} of {CASES} drawn cases"


def gpu() -> Iterator[tuple[str, str, str]]:
    """The page on GPUs is made from the same file of measurements; its table is read, not computed again."""
    lines = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| training step |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    ratios = [float(row[4]) for row in rows]
    kernels = [float(row[7]) for row in rows]
    for what, values in (("time of a training step", ratios), ("time of its kernels", kernels)):
        inside = sum(abs(value - 1) <= 0.25 for value in values)
        middle = statistics.median(abs(value - 1) for value in values)
        farthest = max((abs(value - 1), value) for value in values)[1]
        yield (
            f"GPU roofline: {what}, {len(values)} steps of the zoo",
            "an H200, [measured](gpu.md)",
            f"median {100 * middle:.0f} %; {inside} of {len(values)} within 25 %; the farthest {farthest:.2f} times as long",
        )
    paged = "\n".join(lines[lines.index("## Paged activations on a GPU") :])
    errors = re.findall(r"(?<=\| )([+-][\d.]+) %(?= \|)", paged)
    if errors:
        worst = max(abs(float(error)) for error in errors)
        yield (
            "paged training under a budget of memory: time of a step",
            "the same H200, [measured](gpu.md#paged-activations-on-a-gpu)",
            f"at most {worst:.0f} %",
        )


def ledger() -> str:
    """The papers' claims, as the ledger counts them."""
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    counts = re.findall(r"^## (\w+)\n.*?^### All claims\n\n([^\n]*)\.$", text, re.MULTILINE | re.DOTALL)
    if not counts:
        sys.exit("docs/reproduction.md has no counts: trainyard reproduce --markdown docs/reproduction.md writes it")
    rows = ((f"[{paper}]({paper}.md)", told) for paper, told in counts)
    head = "## What the papers claim\n\nBy simulation or not at all; what the verdicts mean, every row and why it misses: "
    return f"{head}[the ledger](reproduction.md).\n\n{table(('paper', 'claims'), rows)}"
