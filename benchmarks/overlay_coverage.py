"""Trains about six hundred models of other people under the overlay, and compares every gradient with plain training's.

    python benchmarks/overlay_coverage.py                                 # by blocks, about eight minutes on two cores
    python benchmarks/overlay_coverage.py --unit tensors                  # single tensors
    python benchmarks/overlay_coverage.py --compiler aot_eager            # blocks and whole models compiled as well
    python benchmarks/overlay_coverage.py --replay                        # blocks replayed by the twin of CUDA graphs on the CPU
    python benchmarks/overlay_coverage.py --family timm --case resnet18   # one

The models are those of benchmarks/coverage.py. Each pass of a model begins with the same weights and random numbers: those in which
the overlay watches or surveys, in every variant of a block, and those that follow the plan. The extra `coverage` has the libraries.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from coverage_cases.case import FAMILIES, Training, cases_of
from coverage_cases.examination import run_in_torch, seed
from coverage_cases.workers import CASES_PER_WORKER, ENVIRONMENT, TIME_LIMIT_S

PASSES = {"blocks": 14, "tensors": 6, "compiled": 40, "replayed": 32}
"""Ten survey passes and some with the plan; five watched ones and one with the plan; with compiled variants and their rivals; with
the surveys of replays, and the plans with and without."""
ROUNDING, HALF_ROUNDING = 1e-6, 5e-2
"""Differences, over the norm of all gradients, up to which they come from another order of sums; in bf16, of compiled code."""
BUDGET = 10**11


@dataclass(kw_only=True)
class Record:
    """What training one model under the overlay showed."""

    family: str
    name: str
    outcome: str = "equal"
    """equal (bit for bit), rounding, differs, fails; without a result: not built, own step, no blocks, plain fails, or random:
    plain training does not repeat its own gradients either, or compiled code would draw other random numbers."""
    blocks: int = 0
    replayed: int = 0
    """Calls of blocks that were replayed in a pass."""
    obstacles: dict[str, int] = field(default_factory=dict)
    """Why blocks were not, and how many."""
    difference: float = 0.0
    error: str = ""


class _TimeIsUp(Exception):
    pass


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise _TimeIsUp(f"took longer than {seconds:.0f} s")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def without_dropout(training: Training) -> None:
    """Compiled code draws other random numbers than eager training: every probability of dropping something becomes zero."""
    for module in training.model.modules():
        is_dropout = "drop" in type(module).__name__.lower() or type(module).__name__ == "StochasticDepth"
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name.lower() or (is_dropout and name == "p")):
                setattr(module, name, 0.0)


def gradients(training: Training, number: int = 0) -> list[Any]:
    """Of one step without an optimizer, which begins with the same random numbers every time."""
    seed(number)
    for parameter in training.model.parameters():
        parameter.grad = None
    run_in_torch(training)
    found = [parameter.grad for parameter in training.model.parameters()]
    return [None if gradient is None else gradient.to_dense().clone() for gradient in found]


def difference(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """The norm of all differences over that of all gradients; infinite where one has no gradient."""
    import torch

    if any((one is None) != (other is None) for one, other in zip(expected, found, strict=True)):
        return float("inf")
    pairs = [(one, other) for one, other in zip(expected, found, strict=True) if one is not None]
    if all(torch.equal(one, other) for one, other in pairs):
        return 0.0
    apart = sum(float((one.double() - other.double()).square().sum()) for one, other in pairs)
    return float((apart / max(sum(float(one.double().square().sum()) for one, _ in pairs), 1e-300)) ** 0.5)


def rounding_of(training: Training, compiler: str | None) -> float:
    import torch

    halves = (torch.bfloat16, torch.float16)
    is_half = any(parameter.dtype in halves for parameter in training.model.parameters())
    return HALF_ROUNDING if compiler is not None and is_half else ROUNDING


def in_double(training: Training) -> None:
    """A batch norm over two images makes rounding a hundred thousand times larger: float32 becomes float64."""
    import torch
    from torch.utils._pytree import tree_map

    def double(value: Any) -> Any:
        return value.double() if isinstance(value, torch.Tensor) and value.dtype is torch.float32 else value

    if all(parameter.dtype is torch.float32 for parameter in training.model.parameters()):
        training.model.double()
        training.inputs, training.targets = tree_map(double, training.inputs), tree_map(double, training.targets)


def train(record: Record, training: Training, unit: str, compiler: str | None, replay: bool) -> None:
    """Fills the record of a model that is built."""
    import trainyard as ty
    from trainyard.live.paging.regions.finding import regions_of

    try:
        if compiler is not None:
            without_dropout(training)
            in_double(training)
        expected = gradients(training)
        noise = difference(expected, gradients(training))
        if compiler is not None and difference(expected, gradients(training, 1)) > 10 * noise:
            record.outcome = "random"
            return
    except Exception as error:
        record.outcome, record.error = "plain fails", repr(error)[:200]
        return
    record.blocks = len(regions_of(training.model))
    if unit == "blocks" and not record.blocks:
        record.outcome = "no blocks"
        return
    try:
        options: dict[str, Any] = {"unit": unit, "compile": compiler or False, "replay": replay}
        with ty.live.overlay(training.model, BUDGET, **options) as pages:
            for _ in range(PASSES["replayed" if replay else "compiled" if compiler else unit]):
                record.difference = max(record.difference, difference(expected, gradients(training)))
                record.replayed = max(record.replayed, pages.replayed_calls)
            record.obstacles = dict(Counter(pages.replay_obstacles.values()))
    except Exception as error:
        record.outcome, record.error = "fails", repr(error)[:300]
        return
    rounding = rounding_of(training, compiler)
    if record.difference > max(rounding, 10 * noise):
        record.outcome = "differs"
    elif record.difference > 0:
        record.outcome = "rounding" if record.difference <= rounding else "random"


def examine(case: tuple[str, str], unit: str, compiler: str | None, replay: bool) -> Record:
    """Builds the model of a family and name, and trains it."""
    family, name = case
    record = Record(family=family, name=name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with limited(TIME_LIMIT_S):
                seed()
                training = next(case for case in cases_of(family) if case.name == name).build()
                if training.step is not None or training.world_size:
                    record.outcome = "own step"
                    return record
                training.optimizer = None
                train(record, training, unit, compiler, replay)
        except _TimeIsUp as error:
            record.outcome, record.error = "fails", str(error)
        except Exception as error:
            record.outcome, record.error = "not built", repr(error)[:200]
    gc.collect()
    return record


def prepare(compiler: str | None) -> None:
    """At the beginning of a worker process."""
    import torch
    from coverage_cases.torchvision_ops import provide

    torch.set_num_threads(1)
    provide()
    if compiler is not None:  # one share is enough to tell whether gradients are right
        from trainyard.live.paging.regions import contest, pages, variants

        variants.SHARES = contest.SHARES = pages.SHARES = (0.5,)  # type: ignore[assignment, attr-defined]


def summary(records: Sequence[Record]) -> list[str]:
    """A table by library, and the models that are not as they should be."""
    outcomes = ("equal", "rounding", "differs", "fails")
    counts = Counter((record.family, record.outcome) for record in records)
    families = [family for family in FAMILIES if any(counts[family, outcome] for outcome in outcomes)]
    lines = ["| models of | bit for bit | up to rounding | other gradients | failed |", "|---|---:|---:|---:|---:|"]
    lines += [f"| {family} | {' | '.join(str(counts[family, outcome]) for outcome in outcomes)} |" for family in families]
    total = [str(sum(counts[family, outcome] for family in FAMILIES)) for outcome in outcomes]
    lines += [f"| all | {' | '.join(total)} |", ""]
    lines += [
        f"- {record.family}, {record.name}: {record.outcome} ({record.error or f'{record.difference:.1e}'})"
        for record in records
        if record.outcome in ("differs", "fails")
    ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="this family only (may be repeated)")
    parser.add_argument("--case", action="append", help="this case only (may be repeated)")
    parser.add_argument("--every", type=int, default=1, help="one case in so many")
    parser.add_argument("--unit", choices=("blocks", "tensors"), default="blocks")
    parser.add_argument("--compiler", choices=("inductor", "aot_eager"))
    parser.add_argument("--replay", action="store_true", help="blocks are recorded, and replayed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all records here")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    chosen = [case for family in options.family or FAMILIES for case in cases_of(family)[:: options.every]]
    chosen = [case for case in chosen if not options.case or case.name in options.case]
    begun, records = time.perf_counter(), []
    work = partial(examine, unit=options.unit, compiler=options.compiler, replay=options.replay)
    with get_context("spawn").Pool(options.jobs, prepare, (options.compiler,), maxtasksperchild=CASES_PER_WORKER) as pool:
        for record in pool.imap(work, [(case.family, case.name) for case in chosen]):
            records.append(record)
            found = record.error or (f"{record.difference:.1e}" if record.difference else "")
            print(f"{record.family}, {record.name}: {record.outcome} {found}".rstrip(), flush=True)
    print("\n".join(["", *summary(records), f"{time.perf_counter() - begun:.0f} s"]))
    if options.replay:
        replayed = [record for record in records if record.replayed]
        print(f"{len(replayed)} models with replayed calls, {sum(record.replayed for record in replayed)} of them")
        obstacles = Counter(name for record in records for name in record.obstacles)
        print("\n".join(f"{count} models with a block that {name}" for name, count in obstacles.most_common()))
    if options.json:
        options.json.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n", encoding="utf-8")
    return int(any(record.outcome in ("differs", "fails") for record in records))


if __name__ == "__main__":
    sys.exit(main())
