"""How many ResNet-50 training steps on changed accelerators one core gets through in a second, and what a command takes.

Every run is on a machine that was not seen before: one field changes from run to run, and of each result time and energy are read;
the rows `full results` also read bytes by level, costs by phase and costs by layer. `rebatched` is a model by name at another batch
size, again and again; `new batch` one at a batch size that was not seen before. `command` is `trainyard run resnet50 --on npu` from
its start, with compiled loops and the tilings of the command before in the cache; `command, searched` finds its tilings itself.
Beside each rate stands that of the plain twin, which costs and books Work by Work, from the same process. With `--against COMMIT`
every row is measured with the code of that commit too, in turns with this one, and the ratio is printed. Seconds are those that a
core was busy. The rate is that of the median run; `mean/s` counts all runs, those that search tiles for the ones after them too.

python benchmarks/sweep_rate.py [--against COMMIT] [--only ROW] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
COMMANDS: dict[str, dict[str, str]] = {"command": {}, "command, searched": {"TRAINYARD_TILINGS": "off"}}
"""What of the environment differs."""
LONGEST_S = 3.0
"""A row is measured for so long at most."""
Change = Callable[[int], object]


class Case(NamedTuple):
    """A new machine for each turn, the steps a second that are asked for (0: none), and what is read of a result."""

    change: Change
    target: float
    whole: bool = False
    batch: Callable[[int], int] = lambda _: 8


def cases() -> dict[str, Case]:
    import trainyard as ty

    npu, tensordash, sigma = (ty.machine(name) for name in ("npu", "tensordash", "sigma"))
    kinds = ("hbm2", "gddr6", "ddr4", "lpddr4")
    # fmt: off
    return {
        "dram":              Case(lambda turn: replace(npu, dram_bytes_per_s=100e9 + turn * 1e8), 5000),
        "dram, as text":     Case(lambda turn: f"npu(dram={100 + turn / 16} GB/s)", 0),
        "clock":             Case(lambda turn: replace(npu, clock_hz=800e6 + turn * 1e6), 5000),
        "latency":           Case(lambda turn: replace(npu, dram_latency_s=50e-9 + turn * 1e-9), 5000),
        "technology":        Case(lambda turn: replace(npu, technology_nm=7 + turn / 100), 5000),
        "dram kind, banks":  Case(lambda turn: replace(npu, dram_kind=kinds[turn % 4], scratchpad_banks=1 + turn), 5000),
        "scratchpad":        Case(lambda turn: replace(npu, scratchpad_bytes=2**22 + turn * 2**13), 500),
        "rows":              Case(lambda turn: replace(npu, array=replace(npu.array, rows=64 + turn % 250, columns=128)), 500),
        "full results":      Case(lambda turn: replace(npu, dram_bytes_per_s=100e9 + turn * 1e8), 500, whole=True),
        "order=cost":        Case(lambda turn: replace(npu, order="cost", dram_bytes_per_s=100e9 + turn * 1e8), 100),
        "order=interleaved": Case(lambda turn: replace(npu, order="interleaved", dram_bytes_per_s=100e9 + turn * 1e8), 0),
        "sigma":             Case(lambda turn: replace(sigma, dram_bytes_per_s=100e9 + turn * 1e8), 200),
        "tensordash":        Case(lambda turn: replace(tensordash, dram_bytes_per_s=50e9 + turn * 1e8), 0),
        "rebatched":         Case(lambda turn: replace(npu, dram_bytes_per_s=100e9 + turn * 1e8), 0, batch=lambda _: 64),
        "new batch":         Case(lambda _: npu, 0, batch=lambda turn: 9 + turn),
    }
    # fmt: on


def read(case: Case, turn: int) -> None:
    import trainyard as ty

    on = case.change(turn)
    result = ty.run("resnet50", on=on, batch=case.batch(turn))  # type: ignore[arg-type]  # a device, or the name of one
    assert result.time_s > 0
    assert result.energy_j > 0
    if case.whole:
        assert result.traffic_bytes["dram"] > 0
        assert len(result.by_phase) > 3
        assert len(result.by_layer) > 50


class Seconds(NamedTuple):
    """Of one run: the median, and the mean, which has its share of the runs that search tiles for those after them."""

    median: float
    mean: float


def seconds(case: Case, turns: range) -> Seconds:
    times: list[float] = []
    for turn in turns:
        begun = time.process_time()
        read(case, turn)
        times.append(time.process_time() - begun)
        if sum(times) > LONGEST_S:
            break
    return Seconds(sorted(times)[len(times) // 2], sum(times) / len(times))


def measured(name: str) -> Seconds:
    """Seconds of a core for one run of a row, in this process."""
    if name in COMMANDS:
        environment = {**os.environ, **COMMANDS[name]}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "trainyard.cli", "run", "resnet50", "--on", "npu"]
        for _ in range(2):  # the first one fills caches
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Seconds(busy, busy)
    case = cases()[name]
    seconds(case, range(700, 703))  # what is kept of a step, compiled loops
    return seconds(case, range(200))


def twin(name: str) -> float:
    """Of the plain twin."""
    from trainyard.systems import Single

    case = cases()[name]
    with patch.object(Single, "schedule", lambda *_: None):
        return seconds(case, range(800, 805)).median


def with_source(name: str, source: Path) -> Seconds:
    """The row with the code in `source`, in a process of its own that this file is read by."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "NUMBA_CACHE_DIR": str(source / ".numba_cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    told = subprocess.run(
        [sys.executable, __file__, "--measure", name], check=True, env=environment, capture_output=True, text=True
    )
    return Seconds(*json.loads(told.stdout))


def compared(name: str, now: Path, then: Path, repeats: int = 3) -> tuple[Seconds, float]:
    """The least of some repeats of both, in turns, so that what else the machine does falls on both."""
    pairs = [(with_source(name, now), with_source(name, then)) for _ in range(repeats)]
    return min(pair[0] for pair in pairs), min(pair[1].median for pair in pairs)


def profiled(name: str) -> None:
    profile, case = cProfile.Profile(), cases()[name]
    for turn in range(900, 950):
        profile.runcall(read, case, turn)
    pstats.Stats(profile).sort_stats("tottime").print_stats(20)


class Worktree:
    """A commit of this repository in a folder of its own, for as long as it is needed."""

    def __init__(self, commit: str) -> None:
        self.commit = commit

    def __enter__(self) -> Path:
        self.folder = Path(tempfile.mkdtemp()) / "then"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", self.folder, self.commit], check=True)
        return self.folder

    def __exit__(self, *_: object) -> None:
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", self.folder], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit as well, in turns")
    parser.add_argument("--only", metavar="ROW", help="one row")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--measure", metavar="ROW", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(measured(chosen.measure)))
        return 0
    rows, missed = cases(), 0
    names = [chosen.only] if chosen.only else [*rows, *COMMANDS]
    beside = "then ms" if chosen.against else "twin ms"
    print(f"{'changed':20}{'steps/s':>9}{'mean/s':>9}{'ms':>10}{beside:>10}{'ratio':>8}")
    with Worktree(chosen.against) if chosen.against else nullcontext(ROOT) as then:
        for name in names:
            if chosen.against:
                ours, other = compared(name, ROOT, then)
            else:
                ours, other = measured(name), measured(name).median if name in COMMANDS else twin(name)
            target = rows[name].target if name in rows else 0
            rate, reached = 1 / ours.median, 1 / ours.median >= target
            missed += not reached
            asked = f"   target {target:g}: {'reached' if reached else 'missed'}" if target else "   (no target)"
            print(f"{name:20}{rate:9.0f}{1 / ours.mean:9.0f}{ours.median * 1e3:10.3f}", end="")
            print(f"{other * 1e3:10.2f}{other / ours.median:7.1f}x{asked}", flush=True)
            if chosen.profile and name in rows:
                profiled(name)
    print(f"targets: {f'{missed} missed' if missed else 'all reached'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
