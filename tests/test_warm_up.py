"""Loops are compiled before anybody waits for them, and those that are still compiled later are named."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import njit

from trainyard import warm_up as warming
from trainyard.cli import main
from trainyard.kernels.compilation import observed
from trainyard.machines import machine
from trainyard.warm_up import STAGES, Stage
from trainyard.workloads import zoo

PRESETS = """
import trainyard as ty
from trainyard.kernels.compilation import observed
from trainyard.machines.registry import MACHINES
loops = []
with observed(loops.append):
    for name in MACHINES:
        if name not in ("pim-opt", "direct"):  # a DPU has no room for these models
            ty.run("bert-tiny", on=name, batch=256).as_dict()
    ty.run("mobilenet", on="npu(order=paper)", batch=2).as_dict()
    ty.run("resnet50", on="npu(scratchpad=1 MiB)").ranged().as_dict()
    ty.run("resnet18", on="tensordash", masks="sparsity(A=0.7,G=0.6)", batch=2).as_dict()
    ty.run("resnet18", on="sigma", masks="sparsity(A=0.7,G=0.6)", batch=2).as_dict()
assert not loops, loops
"""


def a_loop(of: str) -> object:
    def added(number):  # type: ignore[no-untyped-def]  # compiled below, for the types it is called with
        return number + 1

    added.__module__ = of
    return njit(added)


def test_a_loop_is_named_once_for_each_of_its_types_and_others_never() -> None:
    ours, others = a_loop("trainyard.kernels.mapping.tiles"), a_loop("somebody.else")
    loops: list[str] = []
    with observed(loops.append):
        assert (ours(1), ours(2), ours(1.5), others(1)) == (2, 3, 2.5, 2)  # type: ignore[operator]
    ours(1j)  # type: ignore[operator]
    assert [loop.rpartition(".")[0] for loop in loops] == ["mapping.tiles.a_loop.<locals>"] * 2


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_waits_for_the_compiler(enabled: bool) -> None:
    inner = a_loop("trainyard.kernels.mapping.tiles")

    @njit
    def outer(number):  # type: ignore[no-untyped-def]
        return inner(number)  # type: ignore[operator]

    outer.py_func.__module__ = "trainyard.kernels.mapping.tiles"
    collecting: list[bool] = []
    try:
        (gc.enable if enabled else gc.disable)()
        with observed(lambda _: collecting.append(gc.isenabled())):
            assert outer(1) == 2
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert collecting == [False, False]


def test_the_stages_name_models_and_machines_that_there_are() -> None:
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    for stage in STAGES:
        for model, text, _ in stage.runs:
            assert zoo.entry(model).name == model
            machine(text)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_command_says_what_it_compiled(
    processes: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warming, "STAGES", (Stage("first", (("bert-tiny", "npu", {}),)),))
    assert main(["warm-up", "--processes", processes]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.strip() in ("all loops were in the cache",) or "loops compiled" in said.err


@pytest.mark.slow
def test_after_the_warm_up_a_new_process_compiles_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "trainyard.cli", "warm-up"], check=True, env=environment)
    again = subprocess.run(
        [sys.executable, "-m", "trainyard.cli", "warm-up"], check=True, env=environment, capture_output=True, text=True
    )
    assert again.stderr.strip() == "all loops were in the cache"
    subprocess.run([sys.executable, "-c", PRESETS], check=True, env=environment)
