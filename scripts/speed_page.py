"""Writes docs/speed.md: how fast (quick forms of benchmarks/, each beside its peer or twin) and how accurate (against what).

    python scripts/speed_page.py              # every benchmark, at most about three minutes
    python scripts/speed_page.py --whole      # and SCALE-Sim and `trainyard reproduce --anew`, many minutes more
    python scripts/speed_page.py --only serve,engine
    python scripts/speed_page.py --page       # the page alone, from what was measured

What was measured is kept in benchmarks/data/speed.json: a benchmark that is not run this time, or fails, leaves its last rows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BENCHMARKS, KEPT, PAGE = ROOT / "benchmarks", ROOT / "benchmarks" / "data" / "speed.json", ROOT / "docs" / "speed.md"
SECONDS = 180
"""For all benchmarks together; what would begin later is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the page: a number with its target (None: there is none), and what stood beside it in the same run."""

    what: str
    value: float
    unit: str
    target: float | None = None
    most: bool = True
    """The target is the most that it may be, or the least."""
    beside: str = ""
    ratio: float | None = None


def ran(*words: str, seconds: float = 120, folder: Path = ROOT) -> str:
    """What a program prints. A benchmark that misses its bound says so by its exit code; that is no failure here."""
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=seconds)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise RuntimeError((done.stderr.strip().splitlines() or ["nothing was printed"])[-1])
    return done.stdout


def benchmark(script: str, *options: str, seconds: float = 120) -> str:
    return ran(sys.executable, str(BENCHMARKS / script), *options, seconds=seconds)


def found(pattern: str, text: str) -> tuple[float, ...]:
    """The numbers of the first place that fits."""
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"no line like {pattern!r} in what it printed")
    return tuple(float(word.replace(",", "")) for word in match.groups())


N = r"([\d.,]+(?:e[+-]?\d+)?)"


def sweep_rate() -> Iterator[Row]:
    text = benchmark("sweep_rate.py")
    targets = {
        "dram": 5000,
        "clock": 5000,
        "technology": 5000,
        "scratchpad": 500,
        "rows": 500,
        "order=cost": 100,
        "sigma": 200,
    }
    for name, target in targets.items():
        rate, _, _, twin, ratio = found(rf"^{name} +{N} +{N} +{N} +{N} +{N}x", text)
        changed = f"{name}, dram changed in each" if name in ("order=cost", "sigma") else f"{name} changed in each"
        yield Row(
            what=f"ResNet-50 training steps, time and energy read, {changed}", value=rate, unit="steps/s of a core",
            target=target, most=False, beside=f"work by work: {twin:.1f} ms a step", ratio=ratio,
        )  # fmt: skip
    rate, _, _, twin, ratio = found(rf"^full results +{N} +{N} +{N} +{N} +{N}x", text)
    yield Row(
        what="ResNet-50 training steps, full results, dram changed in each", value=rate, unit="steps/s of a core",
        target=500, most=False, beside=f"work by work: {twin:.1f} ms a step", ratio=ratio,
    )  # fmt: skip
    for name, cached in (("command", "loops and tilings in the cache"), ("command, searched", "loops in the cache")):
        _, _, command_ms = found(rf"^{name} +{N} +{N} +{N}", text)
        yield Row(what=f"`trainyard run resnet50 --on npu`, {cached}", value=command_ms / 1e3, unit="s of a core")


def sweep_points(points: int = 300) -> Iterator[Row]:
    text = benchmark("sweep_points.py", "--points", str(points))
    (bare_ms,) = found(rf"^bare ty.run.*? {N} ms", text)
    inline_ms, rate = found(rf"^a point of a sweep, inline +{N} ms +{N} a second", text)
    half, half_s, rest, rest_s = found(rf"^half[^:]*: {N} computed in {N} s[^\n]*\nthe rest[^:]*: {N} computed in {N} s", text)
    workers, again_s = found(rf"^once more on {N} workers: 0 computed in {N} s", text)
    yield Row(what="points of a sweep, ResNet-50, stored", value=rate, unit="points/s of a core",
              beside=f"bare `ty.run`: {bare_ms:.2f} ms a point", ratio=bare_ms / inline_ms)  # fmt: skip
    whole = (half_s + rest_s) / (half + rest) * 10_000 / 60
    yield Row(what=f"10,000 points on {workers:.0f} processes (from {half + rest:,.0f}, resumed halfway)", value=whole,
              unit="minutes", target=10, beside=f"once more, nothing to do: {again_s:.1f} s")  # fmt: skip


def serve() -> Iterator[Row]:
    told = json.loads(benchmark("serve_latency.py", "--json", "-"))
    yield Row(what="`trainyard serve`: the page with all its files", value=told["page, all files (s)"], unit="s", target=1.0,
              beside=f"first byte: {1e3 * told['page, first byte (s)']:.0f} ms")  # fmt: skip
    changed = told["a changed machine, median (s)"]
    again = told["cached, 99th percentile (s)"]
    yield Row(what="`trainyard serve`: a cached run with its figures, 99th percentile", value=1e3 * again, unit="ms", target=100,
              beside=f"a changed machine: {1e3 * changed:.0f} ms", ratio=changed / told["cached, median (s)"])  # fmt: skip


def new_process() -> Iterator[Row]:
    (cold,) = found(rf"^new process, start to result: {N} s", benchmark("resnet50_systolic.py"))
    yield Row(what="ResNet-50 on an NPU in a new process, start to result, tile search included", value=cold, unit="s", target=2.0)


def engine() -> Iterator[Row]:
    text = benchmark("engine_million.py")
    (seconds,) = found(rf"^ +build one by one and run +{N}", text)
    compiled, plain, ratio = found(rf"a quarter transfers: compiled {N} s, plain Python {N} s, ratio {N}", text)
    yield Row(what="a million tasks through the engine, built one by one and run", value=seconds, unit="s", target=1.0,
              beside=f"plain twin, 20,000 with transfers: {plain:.2f} s for {1e3 * compiled:.0f} ms", ratio=ratio)  # fmt: skip


def tensordash() -> Iterator[Row]:
    text = benchmark("tensordash_schedule.py", "4000000")
    for unit, target in (("4 x 4 x 4", 1.5e9), ("16 x 3 x 4", 2e8)):
        rate, plain, ratio = found(rf"^{unit} lockstep +60% +[\d.]+x +{N} +{N} +{N}x", text)
        yield Row(what=f"TensorDash: lane positions, {unit} (lanes, depth, rows), 60 % zeros", value=rate, unit="/s of a core",
                  target=target, most=False, beside=f"plain twin: {plain:.1e} /s", ratio=ratio)  # fmt: skip


def sigma() -> Iterator[Row]:
    text = benchmark("sigma_suite.py")
    count, seconds = found(rf"^{N} products, masks drawn: {N} s", text)
    ours, twin, ratio = found(rf"already: {N} ms; numpy twin {N} ms, {N} times", text)
    yield Row(what=f"SIGMA: {count:.0f} products from exact masks, drawn and packed", value=seconds, unit="s", target=30,
              beside=f"numpy twin on one: {twin:.0f} ms for {ours:.0f} ms", ratio=ratio)  # fmt: skip


def direct() -> Iterator[Row]:
    told = json.loads(benchmark("direct_fabric.py", "--agents", "16", "--pieces", "10", "--repeats", "1", "--json", "-"))
    agents = told["agents"]
    yield Row(what="DIRECT: one exchange between 2048 DPUs, every message", value=told["total_s"], unit="s", target=30,
              beside=f"agents: {agents['agents_per_s'] / 1e6:.2f} M events/s for {agents['compiled_per_s'] / 1e6:.1f} M",
              ratio=agents["ratio"])  # fmt: skip
    yield Row(what="DIRECT: events of the fabric", value=told["events_per_s"] / 1e6, unit="M/s", target=5, most=False)
    for name in ("local", "global"):
        row = told[name]
        yield Row(what=f"accuracy: DIRECT's {name} exchange, closed form", value=100 * (row["analytic_s"] / row["simulated_s"] - 1),
                  unit="%", beside=f"every message of 2048 DPUs: {1e3 * row['simulated_s']:.2f} ms")  # fmt: skip


def mcdla() -> Iterator[Row]:
    text = benchmark("mcdla.py")
    runs, workers, seconds = found(rf"^{N} steps on {N} processes: {N} s", text)
    first, next_ms, ratio = found(rf"first design {N} ms, the next one {N} ms \({N} times", text)
    yield Row(what=f"MC-DLA: {runs:.0f} training steps of nodes of eight on {workers:.0f} processes", value=seconds, unit="s",
              target=10, beside=f"first design {first:.0f} ms, the next {next_ms:.0f} ms", ratio=ratio)  # fmt: skip


def capture() -> Iterator[Row]:
    told = json.loads(benchmark("capture_gpt.py", "--json", "-"))
    ours, counter = told["ours"], told["counter"]
    yield Row(what=f"capture of a GPT of {ours['parameters'] / 1e9:.0f} B parameters", value=ours["seconds"], unit="s",
              target=6, beside=f"torch's FlopCounterMode, one: {counter['seconds']:.1f} s", ratio=1 / told["ratio"])  # fmt: skip
    yield Row(what="accuracy: MACs of a captured GPT step", value=100 * (ours["macs"] / counter["macs"] - 1), unit="%",
              beside=f"FlopCounterMode: {counter['macs']:.4e}")  # fmt: skip


def scalesim() -> Iterator[Row]:
    if not (ROOT / "build" / "vs_scalesim" / "bin" / "python").exists():
        raise RuntimeError("benchmarks/vs_scalesim/run.py has made no environment with SCALE-Sim yet")
    text = benchmark("vs_scalesim/run.py", "--quick", seconds=600)
    same, of = found(rf"^cycles: {N} of {N} identical", text)
    theirs, ours, ratio = found(rf"^time: SCALE-Sim {N} s, ours {N} ms, ratio {N}", text)
    yield Row(what="the same layers as SCALE-Sim 3.0.0, tile search and traffic included", value=ours, unit="ms",
              beside=f"SCALE-Sim: {theirs:.1f} s", ratio=ratio)  # fmt: skip
    yield Row(what="accuracy: stall-free cycles, systolic, three dataflows", value=100 * (of - same) / of, unit="% differ",
              beside=f"SCALE-Sim 3.0.0: {same:.0f} of {of:.0f} identical")  # fmt: skip


def reproduce(anew: bool) -> Iterator[Row]:
    """In an empty folder, so that the repository's own ledger is left as it is."""
    words = (sys.executable, "-m", "trainyard", "reproduce", "--json", "-")
    with tempfile.TemporaryDirectory() as folder:
        if anew:
            begun = time.perf_counter()
            rows = json.loads(ran(*words, "--anew", seconds=1500, folder=Path(folder)))
            yield Row(what=f"`trainyard reproduce`: {len(rows)} claims of five papers", value=(time.perf_counter() - begun) / 60,
                      unit="minutes", target=4)  # fmt: skip
        from trainyard.papers import experiment_cache, ledger

        if any(experiment_cache.rows(paper) is None for paper in ledger.papers()):
            raise RuntimeError("the ledger of this state of the program is not kept yet: trainyard reproduce")
        begun = time.perf_counter()
        ran(*words, folder=Path(folder))
        yield Row(what="`trainyard reproduce` when nothing changed", value=time.perf_counter() - begun, unit="s", target=5)


# fmt: off
MEASURED: Mapping[str, Callable[[], Iterator[Row]]] = {
    "sweep_rate": sweep_rate, "sweep_points": sweep_points, "serve": serve, "new_process": new_process, "engine": engine,
    "capture": capture, "tensordash": tensordash, "sigma": sigma, "mcdla": mcdla, "direct": direct,
    "reproduce": partial(reproduce, False),
}
LONG: Mapping[str, Callable[[], Iterator[Row]]] = {"scalesim": scalesim, "reproduce": partial(reproduce, True)}
# fmt: on


def measure(wanted: Mapping[str, Callable[[], Iterator[Row]]], kept: dict[str, Any]) -> None:
    begun = time.perf_counter()
    for name, measured in wanted.items():
        kept.setdefault(name, {"rows": []})
        if time.perf_counter() - begun > SECONDS and name not in LONG:
            print(f"{name}: left out, the time is up")
            continue
        try:
            rows = [asdict(row) for row in measured()]
            kept[name] = {"rows": rows, "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 1)}
            print(f"{name}: {len(rows)} rows", flush=True)
        except (RuntimeError, subprocess.SubprocessError, ValueError, KeyError, OSError) as problem:
            print(f"{name}: not measured: {problem}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="also SCALE-Sim, and every paper anew")
    parser.add_argument("--only", default="", help=f"some of {','.join(MEASURED)}")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    asked = parser.parse_args()
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    offered = {**MEASURED, **LONG} if asked.whole else dict(MEASURED)
    wanted = {name: one for name, one in offered.items() if not asked.only or name in asked.only.split(",")}
    if not asked.page:
        measure(wanted, kept)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    from speed_tables import page

    PAGE.write_text(page({name: kept[name] for name in {**MEASURED, **LONG} if name in kept}), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
