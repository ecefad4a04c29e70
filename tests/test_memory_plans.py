"""`ty.plan_memory`: budgets and times, beside torch's own checkpoints as they are captured."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise

import pytest

import trainyard as ty
from trainyard.devices.gpu.host import UNPACKED_CALLS
from trainyard.errors import BadInput
from trainyard.mapping.overlay.by_blocks import Block, block_choices, block_names
from trainyard.mapping.overlay.policy import Problem, Saved
from trainyard.memory_plans import _by_blocks


def held_bytes(step: ty.Step) -> int:
    """The most memory that a step holds: every tensor from its producer to its last reader."""
    change: Counter[int] = Counter()
    for users, size in step.transients:
        change[min(users)] += size
        change[max(users) + 1] -= size
    return step.resident_bytes + max(accumulate(change[op] for op in range(len(step))))


def test_plain_training_is_the_row_of_most_memory_and_less_memory_is_slower() -> None:
    plan = ty.plan_memory("bert-large", "h200", batch=64)
    step = ty.zoo.load("bert-large", batch=64)
    assert plan.rows[-1].time_s == pytest.approx(ty.run(step, "h200").time_s)
    assert plan.rows[-1].checkpointed == ()
    assert plan.rows[-1].peak_bytes == pytest.approx(held_bytes(step), rel=0.01)
    assert len(plan.rows[0].checkpointed) in (23, 24)
    for less, more in pairwise(plan.rows):
        assert less.peak_bytes < more.peak_bytes
        assert less.time_s > more.time_s
        assert less.kept_bytes + less.recomputed_bytes == more.kept_bytes + more.recomputed_bytes
    assert "bert-large on h200, by blocks" in str(plan)


def test_all_blocks_checkpointed_is_what_a_captured_checkpoint_costs() -> None:
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Stack(nn.Module):
        def __init__(self, is_checkpointed: bool) -> None:
            super().__init__()
            layers = (nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True) for _ in range(4))
            self.layers, self.head = nn.ModuleList(layers), nn.Linear(256, 8)
            self.call = partial(checkpoint, use_reentrant=False) if is_checkpointed else lambda layer, x: layer(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = self.call(layer, x)
            return self.head(x).float().square().mean()

    plain, checkpointed = (ty.capture(Stack(is_checkpointed), torch.zeros(8, 512, 256)) for is_checkpointed in (False, True))
    plan = ty.plan_memory(plain, "h200")
    everything = next(row for row in _by_blocks(plain, ty.machine("h200")) if len(row.checkpointed) == 4)
    assert everything.time_s == pytest.approx(ty.run(checkpointed, "h200").time_s, rel=0.06)
    assert everything.peak_bytes == pytest.approx(held_bytes(checkpointed), rel=0.06)
    assert plan.rows[-1].peak_bytes > 2 * everything.peak_bytes
    assert plan.rows[0].peak_bytes <= everything.peak_bytes  # the last block need not be checkpointed for that
    assert plan.rows[0].time_s <= everything.time_s


def test_a_slow_host_makes_checkpointed_blocks_cost_their_calls_and_saved_tensors() -> None:
    """Blocks whose kernels are short: with no host their forward costs as much as it takes, with one its calls and hooks."""
    gpu = ty.machine("h200")
    fast, slow = (ty.plan_memory("bert-base", machine, batch=16) for machine in (replace(gpu, graphs=True), gpu))
    gains = [plan.rows[0].time_s - plan.rows[-1].time_s for plan in (fast, slow)]
    blocks = len(slow.rows[0].checkpointed)
    assert blocks == len(fast.rows[0].checkpointed) == 10
    calls = blocks * 10  # products, norms, softmax, activation: at least so many in a forward of one block
    assert gains[1] > gains[0] + calls * (1 + UNPACKED_CALLS) * gpu.call_s
    step = ty.zoo.load("bert-base", batch=16)
    assert slow.rows[-1].time_s == pytest.approx(ty.run(step, gpu).time_s)


def test_blocks_that_keep_the_host_busy_for_few_bytes_are_checkpointed_last() -> None:
    """Swin-like: early blocks hold many bytes, late ones few, with as many calls each. A slow host takes the early ones."""
    tensors = (saved("early", 90, 0, 3), saved("late", 10, 1, 2))
    problem = Problem(
        durations_s=(1.0,) * 4, other_bytes=(0,) * 4, saved=tensors, out_bytes_per_s=1.0, in_bytes_per_s=1.0
    )  # fmt: skip
    early = Block(name="early", saved=(0,), forward_s=90.1, bytes=90, input_bytes=0, forward=(0,), backward=3, saved_tensors=5)
    late = Block(name="late", saved=(1,), forward_s=10.0, bytes=10, input_bytes=0, forward=(1,), backward=2, saved_tensors=5)
    by_device = [choice.checkpointed for choice in block_choices(problem, [early, late])]
    assert by_device == [(), ("late",), ("late", "early")]
    seconds = {(): 4.0, ("late",): 10.0, ("early",): 10.0, ("late", "early"): 16.0, ("early", "late"): 16.0}
    both = block_choices(problem, [early, late], lambda chosen: seconds[tuple(block.name for block in chosen)])
    assert [choice.checkpointed for choice in both] == [*by_device, ("early",), ("early", "late")]
    assert [choice.choice.time_s for choice in both] == [4.0, 10.0, 16.0, 10.0, 16.0]


def saved(name: str, size: int, forward: int, backward: int) -> Saved:
    positions = {"produced": forward, "last_forward": forward, "first_backward": backward, "last_backward": backward}
    return Saved(name=name, bytes=size, recompute_s=None, **positions)


def test_a_budget_gives_the_fastest_row_within_it_and_one_below_the_least_is_refused() -> None:
    plan = ty.plan_memory("resnet50", "a100", batch=32)
    middle = (plan.rows[0].peak_bytes + plan.rows[-1].peak_bytes) // 2
    row = ty.plan_memory("resnet50", "a100", batch=32, budget=middle).rows[0]
    assert row == plan.at(middle)
    assert row.peak_bytes <= middle
    with pytest.raises(BadInput, match=r"resnet50 does not fit 1 MB on a100: .* is the least by blocks"):
        plan.at("1 MB")


def test_single_tensors_are_sent_or_recomputed_on_any_machine() -> None:
    plan = ty.plan_memory("alexnet", "npu", unit="tensors", batch=16)
    assert plan.rows[0].sent_bytes + plan.rows[0].recomputed_bytes > 0
    assert plan.rows[-1].time_s == pytest.approx(ty.run("alexnet", "npu", batch=16).time_s)
    assert all(less.time_s > more.time_s for less, more in pairwise(plan.rows))


def test_a_node_and_an_unknown_unit_are_refused() -> None:
    with pytest.raises(BadInput, match="about one device"):
        ty.plan_memory("alexnet", "mcdla-b")
    with pytest.raises(BadInput, match="unit must be"):
        ty.plan_memory("alexnet", "npu", unit="layers")  # type: ignore[arg-type]


def test_a_block_that_lacks_a_layer_of_those_beside_it_is_a_block_too() -> None:
    whole = [f"stage.{number}.{inner}" for number in (1, 2) for inner in ("attention", "norm", "drop")]
    names = block_names(["stage.0.attention", "stage.0.norm", *whole, "head.0.norm", "head.0.drop"])
    assert {layer for layer, block in names.items() if block == "stage.0"} == {"stage.0.attention", "stage.0.norm"}
    assert not any(layer.startswith("head") for layer in names)


def test_blocks_are_the_deepest_repeated_parts_with_several_layers() -> None:
    stages = [f"features.{stage}.{block}.{part}" for stage in (1, 3) for block in range(3) for part in ("conv.0", "norm")]
    names = block_names([*stages, "features.1.0", "head.0", "head.1"])
    assert names["features.3.2.conv.0"] == "features.3.2"
    assert names["features.1.0"] == "features.1.0"
    assert "head.0" not in names
