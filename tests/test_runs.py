"""What assumptions are worth: nothing is run for what cannot change a metric, and what is skipped really changes nothing."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import trainyard as ty
from trainyard import runs
from trainyard.ir import Convolution, ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec, assumed, assumptions_of
from trainyard.ir.assumptions import trials
from trainyard.masks.generated import generated_masks
from trainyard.results.result import Result

POINTWISE = Convolution(batch=2, in_channels=24, out_channels=40, size=(6, 6), kernel=(1, 1))
STRIDED = Convolution(batch=2, in_channels=24, out_channels=40, size=(9, 9), kernel=(3, 3), stride=(2, 2), padding=(1, 1))


def fully_connected(dtype: str = "fp32") -> Step:
    """A layer forward and backward with an element-wise op behind it."""
    shapes = ((64, 96), (160, 96), (64, 160), (64, 160), (160, 96), (64, 96))
    roles = (Role.ACTIVATION, Role.PARAMETER, Role.ACTIVATION, Role.GRADIENT, Role.PARAMETER_GRADIENT, Role.GRADIENT)
    tensors = tuple(TensorSpec(shape, dtype, role) for shape, role in zip(shapes, roles, strict=True))
    ops = (
        Op(body=MatMul(64, 160, 96), layer="fc", inputs=(0, 1), outputs=(2,), letters=("A", "W")),
        Op(body=ElementWise("relu", 64 * 160), layer="relu", inputs=(2,), outputs=(2,)),
        Op(body=MatMul(160, 96, 64), layer="fc", phase=Phase.GRAD_WEIGHT, inputs=(3, 0), outputs=(4,), letters=("G", "A")),
        Op(body=MatMul(64, 96, 160), layer="fc", phase=Phase.GRAD_INPUT, inputs=(3, 1), outputs=(5,), letters=("G", "W")),
    )
    return Step(name=f"fc {dtype}", batch=64, ops=ops, tensors=tensors)


def convolution(body: Convolution, *products: str) -> Step:
    ops = tuple(Op(body=body.as_product(product), layer="conv", phase=Phase(product)) for product in products)  # type: ignore[arg-type]
    return Step(name=f"conv {body.kernel} {products}", batch=body.batch, ops=ops, tensors=())


def test_results_and_comparisons_pickle_and_can_be_run_again() -> None:
    found = ty.compare(fully_connected(), on=["npu", "mcdla-b"])
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is runs.Comparison
    assert again == found
    for one, other in zip(found, again, strict=True):
        assert other.rerun is not None
        assert other.rerun({}) == one
        assert other.ranged().range_s == one.ranged().range_s


ALL = ("forward", "grad_weight", "grad_input")
STEPS = {
    "fc": fully_connected(),
    "fc bf16": fully_connected("bf16"),
    "pointwise": convolution(POINTWISE, *ALL),
    "strided": convolution(STRIDED, *ALL),
    "strided, forward": convolution(STRIDED, "forward"),
}
MACHINES = [
    "tpu", "npu", "npu(im2col=materialised,accumulator_bytes=2)", "spatial", "tensordash", "tensordash(scope=products)",
    "sigma", "sigma(scope=products,grad_input=dilated)", "sigma(array.streaming=limited)", "sigma(array.drain=pass)",
    "sigma(array.across=chain)", "sigma(together=gradients)", "sigma(scratchpad=24 KiB)", "npu(scratchpad=16 KiB)", "scnn", "eie",
]  # fmt: skip


def skipped(result: Result) -> dict[str, list[Any]]:
    """What no run is spent on, by name."""
    return {a.name: list(a.alternatives) for a in result.assumptions if a.open and not a.changes("time_s")}


def metrics(result: Result) -> tuple[Any, ...]:
    return result.time_s, result.cycles, result.array_cycles, result.by_layer, result.traffic, result.macs, result.energy_j


@pytest.mark.oracle
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_skipped_changes_nothing(machine: str, step: Step) -> None:
    masks = generated_masks(step, {"A": 0.5, "G": 0.6, "W": 0.7}, seed=1)
    result = ty.run(step, machine, masks=masks)
    assert result.rerun is not None
    for name, alternatives in skipped(result).items():
        (assumption,) = (a for a in result.assumptions if a.name == name)
        for alternative in alternatives:
            again = result.rerun({name: alternative})
            assert again.time_s == result.time_s, (name, alternative)
            if assumption.unused:
                assert metrics(again) == metrics(result), (name, alternative)
            else:
                assert (assumption.only, again.cycles, again.array_cycles) == ("energy_j", result.cycles, result.array_cycles)
                assert again.energy_j != result.energy_j, (name, alternative)


ENERGY = {"technology_nm", "dram_kind"}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("machine", "step", "names"),
    [
        ("sigma", "fc", {"im2col", "line_buffer", "grad_input", "accumulator_bytes", "array.drain", *ENERGY}),
        ("sigma", "fc bf16", {"im2col", "line_buffer", "grad_input", "array.drain", *ENERGY}),
        ("sigma(array.streaming=limited)", "strided, forward", {"grad_input", "accumulator_bytes", *ENERGY}),
        ("sigma", "pointwise", {"im2col", "line_buffer", "accumulator_bytes", "array.drain", *ENERGY}),
        ("sigma", "strided", {"accumulator_bytes", "array.drain", *ENERGY}),
        ("tpu(precision=bf16)", "strided", ENERGY),
        ("npu(scope=products)", "fc bf16", {"im2col", "line_buffer", "grad_input", "fusion", "vector_lanes", *ENERGY}),
        ("h200", "fc", set()),
    ],
)
def test_what_is_skipped_where(machine: str, step: str, names: set[str]) -> None:
    assert set(skipped(ty.run(STEPS[step], machine))) == names


@pytest.mark.unit
def test_a_range_is_over_what_may_change_the_time() -> None:
    result, asked = ty.run(STEPS["fc"], "sigma"), []
    assert result.rerun is not None
    again = result.rerun

    def rerun(changes: Any) -> Result:
        asked.extend(changes)
        return again(changes)

    told: list[tuple[int, int]] = []
    ranged = replace(result, rerun=rerun).ranged(lambda *done: told.append(done))
    assert len(told) == len(asked) == len(trials(result.assumptions, "time_s"))
    assert not set(asked) & {*skipped(result), "scope"}
    weighed = ty.whatif(STEPS["fc"], "sigma", kinds=("assumption",), paired=0)
    times = [result.time_s, *(effect.after for effect in weighed if effect.name != "scope")]
    assert ranged.range_s == (min(times), max(times))


@pytest.mark.unit
def test_a_part_may_say_what_is_idle_as_it_stands_or_of_a_step() -> None:
    @dataclass(frozen=True)
    class Part:
        one: int = assumed(1, "first", 2)
        two: int = assumed(1, "second", 2, only="energy_j")

        @property
        def unused_assumptions(self) -> frozenset[str]:
            return frozenset({"one"})

    @dataclass(frozen=True)
    class Whole:
        part: Part
        three: int = assumed(1, "third", 2)

        def unused_assumptions(self, step: Step) -> frozenset[str]:
            return frozenset({"three"} if step.batch == 2 else ())

    @dataclass(frozen=True)
    class Other:
        idle: float = 0.5
        four: int = assumed(1, "fourth", 2)

    def idle(machine: Any, step: Step | None) -> set[str]:
        return {a.name for a in assumptions_of(machine, step) if a.unused}

    whole = Whole(Part())
    assert idle(whole, STEPS["strided"]) == {"part.one", "three"}
    assert idle(whole, STEPS["fc"]) == idle(whole, None) == {"part.one"}
    assert idle(Other(), STEPS["fc"]) == set()
    assert {a.name: (a.changes("time_s"), a.changes("energy_j")) for a in assumptions_of(whole)} == {
        "part.one": (False, False), "part.two": (False, True), "three": (True, True),
    }  # fmt: skip
    assert trials(assumptions_of(whole), "time_s") == [("three", 2)]


def test_a_workload_is_named_as_on_the_command_line(tmp_path: Path) -> None:
    step = fully_connected()
    saved, script = tmp_path / "fc.json", tmp_path / "mine.py"
    saved.write_text(step.to_json())
    script.write_text("import trainyard as ty\n\ndef build():\n    return ty.zoo.load('linear', batch=2)\n")
    topology = tmp_path / "layers.csv"
    topology.write_text("Layer, M, N, K,\nfirst, 64, 32, 16,\n")
    assert ty.run(str(saved), on="npu") == ty.run(saved, on="npu") == ty.run(step, on="npu")
    assert ty.run(f"{script}:build", on="npu") == ty.run("linear", on="npu", batch=2)
    assert ty.compare(str(topology), on="npu")[0].macs == 2 * 64 * 32 * 16  # forward and grad_weight
    assert ty.whatif(str(saved), "npu", paired=0) == ty.whatif(step, "npu", paired=0)
    with pytest.raises(ty.TrainyardError, match="which function"):
        ty.run(str(script), on="npu")


def test_the_seed_draws_generated_masks_and_is_stored() -> None:
    step = STEPS["fc"]
    first, same, other = (ty.run(step, on="tensordash", masks="sparsity(A=0.6,G=0.5)", seed=seed) for seed in (1, 1, 2))
    assert first == same
    assert first.cycles != other.cycles
    assert first.as_dict()["seed"] == 1
    assert ty.run(step, on="tensordash", masks="sparsity(A=0.6,G=0.5,seed=2)") == other
    assert ty.run(step, on="tensordash", masks="sparsity(A=0.6)").seed == 0
    assert ty.run(step, on="tensordash").seed is None


@pytest.mark.parametrize("options", [{}, {"masks": generated_masks(fully_connected())}, {"masks": "sparsity(A=0.5,seed=3)"}])
def test_a_seed_that_nothing_uses_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ty.TrainyardError, match="seed=1"):
        ty.run(STEPS["fc"], on="npu", seed=1, **options)


@pytest.mark.parametrize(
    ("machine", "noted"),
    [("npu", True), ("npu(dma=zero_compressed)", False), ("tensordash", False), ("mcdla-b(device=npu)", True),
     ("mcdla-b(device=npu,compression=masks)", False), ("h200", True)],
)  # fmt: skip
def test_masks_that_a_machine_ignores_are_noted(machine: str, noted: bool) -> None:
    step = ty.zoo.load("linear", batch=8)
    masks = generated_masks(step, {"A": 0.5})
    assert any("masks change nothing" in note for note in ty.run(step, on=machine, masks=masks).notes) is noted
    assert not any("masks" in note for note in ty.run(step, on="npu").notes)


@pytest.mark.parametrize(("machine", "field"), [("npu", "clock"), ("mcdla-b(device=npu)", "device.clock")])
def test_a_clock_of_a_fraction_of_a_hertz_is_exact(machine: str, field: str) -> None:
    slow, fast = (ty.run("linear", on=machine, **{field: clock}).time_s for clock in ("0.25 Hz", "0.75 Hz"))
    assert slow == pytest.approx(3 * fast, rel=1e-3)
