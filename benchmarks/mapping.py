"""How good the tiles are: against brute force over all useful tiles, against bounds, against ZigZag, and against an earlier commit.

Random products, convolutions and the products of real training steps are mapped by this trainyard, and by the one of a commit that
is given, in the same run; the least cycles and the least DRAM traffic of each come from `mapping_cases.brute_force`, which knows
nothing of the search. ZigZag runs in an environment of its own where `--zigzag` names its interpreter (`pip install
trainyard[zigzag]` there); without one, what it said before is read from `data/zigzag_resnet18.json`.

python benchmarks/mapping.py [--quick] [--before COMMIT] [--zigzag PYTHON] [--page docs/mapping_benchmark.md]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mapping_cases import brute_force, cases, ledger

HERE = Path(__file__).parent
ROOT = HERE.parent
RECORDED = HERE / "data" / "zigzag_resnet18.json"
BAND = 1.01
"""What counts as equal time, and as optimal."""
COMPUTE_BOUND = 0.9
"""Share of a product's cycles in which the array works, from which on it is bound by the array."""
Json = dict[str, Any]
Line = tuple[str, str, str, str]
"""What was measured, before, now, and the bound."""


def sizes(quick: bool) -> dict[str, int]:
    if quick:
        return {"by_room": 2, "products": 12, "any_arrays": 12, "small": 6, "convolutions": 2, "steps": 1, "pairs": 40, "speeds": 4}
    return {
        "by_room": 30,
        "products": 1000,
        "any_arrays": 1000,
        "small": 100,
        "convolutions": 40,
        "steps": len(cases.STEPS),
        "pairs": 800,
        "speeds": 20,
    }


def asked(many: dict[str, int]) -> tuple[Json, dict[str, slice]]:
    """The question to `measure.py`, and where the answers to each group of products are."""
    groups = {
        "by_room": cases.by_room(many["by_room"]),
        "products": cases.products(many["products"]),
        "any_arrays": cases.any_arrays(many["any_arrays"]),
        "small": cases.small(many["small"]),
        "convolutions": cases.convolutions(many["convolutions"]),
        "named": [cases.NAMED],
        "zigzag": cases.beside_zigzag(),
    }
    where, products = {}, []
    for name, group in groups.items():
        where[name] = slice(len(products), len(products) + len(group))
        products += group
    steps = [{"model": model, "on": machine} for model, machine in cases.STEPS[: many["steps"]]]
    pairs = [*cases.pairs(many["pairs"]), *cases.larger_arrays()]
    return {"products": products, "steps": steps, "pairs": pairs, "speeds": many["speeds"]}, where


def measured(question: Json, source: Path) -> Json:
    """The answers of the trainyard in `source`."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "NUMBA_CACHE_DIR": str(source / ".numba_cache")}
    ran = subprocess.run(
        [sys.executable, HERE / "mapping_cases" / "measure.py"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if ran.returncode:
        sys.exit(f"{source}: {ran.stderr[-2000:]}")
    told: Json = json.loads(ran.stdout)
    return told


def checkout(commit: str) -> Path:
    """A worktree of a commit, made on the first run."""
    folder = ROOT / "build" / "mapping_before" / commit
    if not folder.exists():
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", folder, commit], check=True)
    return folder


class Least:
    """The least cycles, traffic, and traffic within 1 % of the least cycles, of each product; equal ones are searched once."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[float, float, float]] = {}
        self.seconds = 0.0

    def of(self, answers: Sequence[Json], every: bool = False) -> tuple[float, float, float]:
        """`answers` are to the same product: their tilings are where the search begins."""
        product = answers[0]
        asked = {key: product[key] for key in ("dims", "count", "rates", "held", "array", "room", "speed", "latency")}
        cycles = min((float(answer["cycles"]) for answer in answers if answer["cycles"] is not None), default=math.inf)
        moved = min((float(answer["bytes"]) for answer in answers if answer["cycles"] is not None), default=math.inf)
        key = json.dumps([asked, cycles, moved])
        if key not in self.known:
            begun = time.perf_counter()
            array = product["array"]
            tiles = [
                brute_force.sizes(extent, grain, every) for extent, grain in zip(product["dims"], cases.granule(array), strict=True)
            ]
            found = brute_force.least(
                np.array(product["dims"]), np.array(product["rates"]), np.array(product["held"]),
                np.array([array["rows"], array["columns"], cases.DATAFLOWS.index(array["dataflow"])]),
                np.array([product["room"], product["speed"], float(product["latency"])]), product["count"], *tiles,
                np.array([cycles, moved]), BAND,
            )  # fmt: skip
            self.known[key] = (float(found[1]), float(found[0]), float(found[2]))
            self.seconds += time.perf_counter() - begun
        return self.known[key]


def floor_bytes(answer: Json) -> float:
    """Bytes below which no mapping can be: every tensor once, and 2MNK / sqrt(S) - 2S elements for a memory of S elements."""
    (m, n, k), rates = answer["dims"], answer["rates"]
    compulsory = m * k * rates[0] + k * n * rates[1] + m * n * rates[2]
    least = min(rates)
    room = answer["room"] / min(answer["held"])
    return float(answer["count"] * max(compulsory, least * (2 * m * n * k / math.sqrt(room) - 2 * room)))


def _mean_and_most(ratios: Sequence[float]) -> str:
    return f"{statistics.fmean(ratios):.3f} (max {max(ratios):.2f})" if ratios else "-"


class Comparison:
    """The answers of one or two versions, and the least of each product."""

    def __init__(self, versions: Sequence[Json], where: dict[str, slice]) -> None:
        self.versions, self.where, self.least = versions, where, Least()

    def group(self, name: str) -> list[tuple[Json, ...]]:
        return list(zip(*(version["products"][self.where[name]] for version in self.versions), strict=True))

    def line(self, what: str, told: Sequence[str], bound: str = "") -> Line:
        return what, (told[0] if len(told) > 1 else ""), told[-1], bound

    def ratios(self, name: str, every: bool = False, only: str | None = None) -> tuple[list[list[float]], list[list[float]]]:
        """Traffic and cycles over the least, by version."""
        traffic: list[list[float]] = [[] for _ in self.versions]
        cycles: list[list[float]] = [[] for _ in self.versions]
        drawn = cases.by_room((self.where[name].stop - self.where[name].start) // len(cases.ROOMS)) if only else ()
        for number, answers in enumerate(self.group(name)):
            if (only and drawn[number]["class"] != only) or any(answer["cycles"] is None for answer in answers):
                continue
            least_cycles, least_bytes, _ = self.least.of(answers, every)
            for version, answer in enumerate(answers):
                traffic[version].append(answer["bytes"] / least_bytes)
                cycles[version].append(answer["cycles"] / least_cycles)
        return traffic, cycles

    def rooms(self) -> Iterator[Line]:
        for low, high in cases.ROOMS:
            traffic, cycles = self.ratios("by_room", only=f"{low}-{high}")
            what = f"random products with room for {low} to {high} triples of array tiles"
            yield self.line(f"DRAM traffic over the least, {len(traffic[-1])} {what}", [_mean_and_most(one) for one in traffic])
            yield self.line("their cycles over the least", [_mean_and_most(one) for one in cycles], "1.01 each")
        yield from self.for_traffic("by_room", "all of them")

    def for_traffic(self, name: str, what: str) -> Iterator[Line]:
        """DRAM traffic where that is the objective, of the version that has one."""
        answers = [answers for answers in self.group(name) if answers[-1].get("bytes_for_traffic") is not None]
        if answers:
            told = _mean_and_most([each[-1]["bytes_for_traffic"] / self.least.of(each)[1] for each in answers])
            yield self.line(f"DRAM traffic over the least with objective=traffic, {what}", [*[""] * (len(self.versions) - 1), told])

    def products(self) -> Iterator[Line]:
        for name, what in (
            ("products", "random products, any room and bandwidth"),
            ("any_arrays", "random products on arrays with any sides"),
            ("small", "small products, every size of a tile tried"),
            ("convolutions", "products of random convolutions, not unfolded"),
        ):
            traffic, cycles = self.ratios(name, every=name == "small")
            within = [f"{sum(ratio <= BAND for ratio in one)} of {len(one)}, worst {max(one):.3f}" for one in cycles]
            yield self.line(f"cycles within 1 % of the least: {what}", within, "all")
            yield self.line("their DRAM traffic over the least", [_mean_and_most(one) for one in traffic])
        yield from self.for_traffic("products", "the random products")
        below = [
            sum(
                answer["cycles"] is not None and answer["bytes"] < floor_bytes(answer) * (1 - 1e-9)
                for answer in version["products"]
            )
            for version in self.versions
        ]
        yield self.line("products below the bounds (compulsory; 2MNK/sqrt(S) - 2S)", [str(count) for count in below], "0")

    def named(self) -> Iterator[Line]:
        (answers,) = self.group("named")
        told = [f"{tuple(answer['tile'])} {answer['order']}: {answer['cycles']:,}" for answer in answers]
        least_cycles, *_ = self.least.of(answers)
        yield self.line("MatMul(1279, 308, 416), 64 x 64, room 161,631 B, 4 B a cycle: tile, cycles", told, f"{least_cycles:,.0f}")

    def steps(self) -> Iterator[Line]:
        for number, products in enumerate(zip(*(version["steps"] for version in self.versions), strict=True)):
            model, machine = cases.STEPS[number]
            sums = [dict.fromkeys(("bytes", "cycles", "busy"), 0.0) for _ in self.versions]
            least = dict.fromkeys(("bytes", "cycles", "busy"), 0.0)
            worst = [1.0 for _ in self.versions]
            for answers in zip(*products, strict=True):
                least_cycles, least_bytes, at_equal_time = self.least.of(answers)
                times = answers[0]["times"]
                bound_by_array = answers[-1]["compute"] >= COMPUTE_BOUND * answers[-1]["cycles"]
                least["bytes"] += times * least_bytes
                least["cycles"] += times * least_cycles
                least["busy"] += times * at_equal_time * bound_by_array
                for version, answer in enumerate(answers):
                    sums[version]["bytes"] += times * answer["bytes"]
                    sums[version]["cycles"] += times * answer["cycles"]
                    sums[version]["busy"] += times * answer["bytes"] * bound_by_array
                    worst[version] = max(worst[version], answer["cycles"] / least_cycles)
            what = f"{model} on {machine}, products of a training step"
            for key, name in (("bytes", "DRAM traffic over the least"), ("cycles", "cycles over the least")):
                yield self.line(f"{what}: {name}", [f"{one[key] / least[key]:.3f}" for one in sums])
            yield self.line("its worst product, cycles over the least", [f"{one:.3f}" for one in worst], "1.01")
            if least["busy"]:
                told = [f"{one['busy'] / least['busy']:.3f}" for one in sums]
                yield self.line("its products bound by the array: traffic over the least at equal time", told)

    def machines(self) -> Iterator[Line]:
        many = len(self.versions[0]["pairs"]) - len(cases.larger_arrays())
        told = [
            ", ".join(
                f"{rows}: {1e6 * sum(pair['times'][at] for pair in version['pairs'][many:]):.0f} us"
                for at, rows in enumerate(cases.ROWS)
            )
            for version in self.versions
        ]
        what = "Linear 2048 to 1000, batch 32, 64 KiB, a training step, by rows of the array"
        yield self.line(what, told, "longer by fill and drain alone")
        drawn = cases.pairs(many)
        for grown in ("rows", "columns", "scratchpad", "dram"):
            told = []
            for version in self.versions:
                pairs = [(case, pair) for case, pair in zip(drawn, version["pairs"], strict=False) if case["grown"] == grown]
                ratios = [pair["times"][1] / pair["times"][0] for _, pair in pairs]
                slower = [ratio for ratio in ratios if ratio > 1 + 1e-9]
                worst = f", worst {100 * (max(slower) - 1):+.1f} %" if slower else ""
                beyond = sum(pair["times"][1] > BAND * (pair["times"][0] + _more_filling(case, pair)) for case, pair in pairs)
                told.append(f"{len(slower)} of {len(pairs)} slower{worst}; {beyond} beyond fill and drain")
            yield self.line(f"machines with more {grown}", told, "0 beyond fill and drain")

    def halos(self) -> Iterator[Line]:
        for number, worth in enumerate(self.versions[-1]["halos"]):
            if not worth or not worth["with"]:
                continue
            model, machine = cases.STEPS[number]
            told = f"{statistics.median(worth['with']):.2f}, chosen without one {statistics.median(worth['without']):.2f}"
            what = f"{model} on {machine}: image bytes of convolutions without a line buffer, tiles chosen with one (median)"
            yield self.line(what, [told] if len(self.versions) == 1 else ["1 (not counted)", told])
            yield self.line("its step without a line buffer, time", [f"{100 * (worth['times'][1] / worth['times'][0] - 1):+.2f} %"])

    def speeds(self) -> Iterator[Line]:
        for name in self.versions[-1]["speeds"]:
            rates = [version["speeds"][name] for version in self.versions]
            ratio = f" ({rates[-1] / rates[0]:.2g}x)" if len(rates) > 1 else ""
            told = [f"{rate:,.0f}/s" for rate in rates]
            yield self.line(f"ResNet-50 steps, changed {name}", [*told[:-1], told[-1] + ratio])


def _more_filling(case: Json, pair: Json) -> float:
    """Seconds that the larger array fills and drains longer in the folds of the smaller one's mapping, at 1 GHz."""
    small, large = (machine["array"] for machine in case["machines"])
    twice = 1 if small["dataflow"] == "os" else 2  # the stationary operand is shifted in first
    longer = twice * (large["rows"] - small["rows"]) + large["columns"] - small["columns"]
    return float(pair["folds"] * longer * 1e-9)


def zigzag(python: str | None) -> tuple[list[Json], str]:
    """ZigZag's DRAM bytes of each layer, and where they are from."""
    if python is None:
        recorded: Json = json.loads(RECORDED.read_text(encoding="utf-8"))
        return recorded["layers"], f"ZigZag {recorded['version']}, recorded"
    question = {"sram_bytes": cases.ZIGZAG_ROOM, "rows": cases.ZIGZAG_SIDE, "columns": cases.ZIGZAG_SIDE, "layers": cases.RESNET18}
    ran = subprocess.run(
        [python, HERE / "mapping_cases" / "zigzag_peer.py"], input=json.dumps(question), capture_output=True, text=True, check=False
    )
    if ran.returncode:
        sys.exit(f"ZigZag: {ran.stderr[-2000:]}")
    told: Json = json.loads(ran.stdout)
    RECORDED.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return told["layers"], f"ZigZag {told['version']}, in this run"


def beside_zigzag(comparison: Comparison, python: str | None) -> Iterator[Line]:
    """Which counts the halo of a tile; with and without a line buffer on our side."""
    layers, source = zigzag(python)
    theirs = [sum(layer["bytes"].values()) for layer in layers]
    answers = [version["products"][comparison.where["zigzag"]] for version in comparison.versions]
    room = f"{cases.ZIGZAG_ROOM // 1024} KiB for both"
    for key, what in (("bytes", "with a line buffer"), ("bytes_without_line_buffer", "without one")):
        ours = [[answer.get(key) for answer in version] for version in answers]
        ratios = [[] if None in one else [mine / other for mine, other in zip(one, theirs, strict=True)] for one in ours]
        told = [f"{sum(one) / sum(theirs):.3f}" if ratios[version] else "" for version, one in enumerate(ours)]
        yield comparison.line(f"ResNet-18, DRAM bytes over those of {source}, {room}, {what}", told)
        told = [
            f"{sum(r <= 1.1 for r in one)} of {len(one)}, worst {max(one):.2f}, best {min(one):.2f}" if one else ""
            for one in ratios
        ]
        yield comparison.line("its layers within 10 % or below", told)


def lines(comparison: Comparison, python: str | None) -> Iterator[Line]:
    yield from comparison.rooms()
    yield from comparison.products()
    yield from comparison.steps()
    yield from comparison.named()
    yield from comparison.halos()
    yield from comparison.machines()
    yield from beside_zigzag(comparison, python)
    yield from comparison.speeds()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a few of each, within half a minute")
    options.add_argument("--before", metavar="COMMIT", help="an earlier commit, measured in the same run")
    options.add_argument("--zigzag", metavar="PYTHON", help="the interpreter of an environment with the extra `zigzag`")
    options.add_argument("--page", type=Path, help="write the table as a page of the manual")
    given = options.parse_args()
    question, where = asked(sizes(given.quick))
    sources = [*([checkout(given.before)] if given.before else []), ROOT]
    comparison = Comparison([measured(question, source) for source in sources], where)
    rows = []
    for row in lines(comparison, given.zigzag):
        print(
            f"{row[0]}\n    {'before ' + row[1] + '; now ' if row[1] else ''}{row[2]}{'; bound ' + row[3] if row[3] else ''}",
            flush=True,
        )
        rows.append(row)
    print(f"brute force: {len(comparison.least.known)} products in {comparison.least.seconds:.0f} s")
    if given.page:
        given.page.write_text(page(rows, given.before), encoding="utf-8")
    return 0


def page(rows: Sequence[Line], before: str | None) -> str:
    head = """# How good the tiles are

Written by `python benchmarks/mapping.py --page docs/mapping_benchmark.md`. Every product is mapped by the search, and by brute
force: all useful tile sizes along each axis, six loop orders, every choice of what stays in the scratchpad, on the same machine
model, written apart from it. "The least" is the best of these; equal time is within 1 % of the least cycles.
"""
    now = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    said = f"\nNow is commit `{now}`" + (f", before is `{before}`, both measured in one run.\n" if before else ".\n")
    table = ["", "| measured | before | now | bound |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows), ""]
    return head + said + "\n".join(table) + "\n" + ledger.section()


if __name__ == "__main__":
    sys.exit(main())
