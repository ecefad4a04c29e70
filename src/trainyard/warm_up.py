"""`warm_up`: compiles the loops that runs use, so that none is compiled while somebody waits for a first result.

A loop is compiled for the types that it is called with, so the way to compile what runs need is to run: small steps on machines of
every kind. The stages are independent but for the first, whose loops all others share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainyard.progress import ProgressCallback, no_progress

SPARSE = "sparsity(A=0.5,G=0.5,W=0.5)"
Options = Mapping[str, Any]


class Stage(NamedTuple):
    """Runs that compile the loops of one mechanism: (model, machine, options)."""

    name: str
    runs: tuple[tuple[str, str, Options], ...]


# fmt: off
STAGES: tuple[Stage, ...] = (
    Stage("tiles and costs", (("bert-tiny", "npu", {}), ("resnet18", "npu", {}))),
    Stage("orders of gradients", (
        ("bert-tiny", "npu(order=interleaved)", {}), ("bert-tiny", "npu(order=cost,reuse=lru,partition=cost)", {}),
        ("bert-tiny", "npu(reuse=farthest)", {}), ("bert-tiny", "npu(order=cost,across=relu)", {}))),
    Stage("tensors that stay on chip", (("resnet18", "npu(reuse=layers)", {}),)),
    Stage("nodes", (
        ("bert-tiny", "hc-dla", {"batch": 8}), ("bert-tiny", "mcdla-b", {"batch": 8}), ("resnet18", "dc-dla", {"batch": 8}))),
    Stage("zeros on TensorDash", (("bert-tiny", "tensordash", {"masks": SPARSE}), ("resnet18", "tensordash", {"masks": SPARSE}))),
    Stage("zeros on SIGMA", (("bert-tiny", "sigma", {"masks": SPARSE}), ("resnet18", "sigma", {"masks": SPARSE}))),
    Stage("other sparse arrays", (
        ("bert-tiny", "scnn", {}), ("bert-tiny", "eyeriss-v2", {}),
        *(("ncf", name, {"masks": SPARSE}) for name in ("scnn", "eyeriss-v2", "eie", "outerspace", "cambricon-x")))),
)
# fmt: on
@dataclass(frozen=True, slots=True)
class WarmUp:
    """What was compiled, by name; nothing where the cache had everything."""

    compiled: tuple[str, ...]


def warm_up(on_progress: ProgressCallback = no_progress, processes: int = 1) -> WarmUp:
    """Compiles the loops of all STAGES that the cache on disk does not have, on so many processes."""
    compiled: list[str] = []

    def report(done: int, name: str) -> Callable[[str], None]:
        on_progress(done, len(STAGES), name)
        return lambda loop: on_progress(done, len(STAGES), f"{name}: {loop}")

    first, *others = STAGES
    compiled += compile_stage(first, report(0, first.name))
    if processes < 2:
        for done, stage in enumerate(others, start=1):
            compiled += compile_stage(stage, report(done, stage.name))
    else:
        compiled += _in_processes(others, on_progress, processes)
    on_progress(len(STAGES), len(STAGES), "done")
    return WarmUp(tuple(compiled))


def compile_stage(stage: Stage, on_compile: Callable[[str], None] = lambda _: None) -> list[str]:
    """The names of the loops that were compiled for a stage."""
    from trainyard import runs
    from trainyard.kernels.compilation import observed

    compiled: list[str] = []

    def note(loop: str) -> None:
        compiled.append(loop)
        on_compile(loop)

    with observed(note):
        for model, machine, options in stage.runs:
            runs.run(model, machine, **{"batch": 1, **options}).as_dict()
    return compiled


LOOK_S = 0.2
"""How often the loops that processes have begun to compile are looked up."""


def _in_processes(stages: list[Stage], on_progress: ProgressCallback, processes: int) -> list[str]:
    from concurrent.futures import ProcessPoolExecutor, wait
    from multiprocessing import get_context

    context, loops, loop = get_context("spawn"), 0, ""
    with context.Manager() as manager, ProcessPoolExecutor(processes, context) as pool:
        begun = manager.Queue()
        pending = {pool.submit(compile_stage, stage, begun.put): stage for stage in stages}
        while running := [stage.name for future, stage in pending.items() if not future.done()]:
            while not begun.empty():
                loops, loop = loops + 1, begun.get()
            counted = f"loop {loops}, {loop}; " if loops else ""
            on_progress(1 + len(stages) - len(running), len(STAGES), f"{counted}{', '.join(running[:processes])}")
            wait([future for future in pending if not future.done()], LOOK_S)
        return [name for future in pending for name in future.result()]
