"""A step as the overlay sees it: nothing lost, nothing counted twice, and made again only from what is there."""

from __future__ import annotations

from collections import Counter

import pytest

import trainyard as ty
from trainyard import engine
from trainyard.errors import BadInput
from trainyard.ir import ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec, Update, Work
from trainyard.machines.presets.gpus import V100
from trainyard.mapping.overlay.policy import NEVER, completed, simulate, used_bytes
from trainyard.mapping.overlay.problem import PagedStep, page_step
from trainyard.mapping.overlay.search import as_needed
from trainyard.mapping.overlay.stress import offload_all
from trainyard.systems.single import Single

LINK = {"out_bytes_per_s": 16e9, "in_bytes_per_s": 16e9}


def seen(step: Step, **kwargs: object) -> PagedStep:
    """Every op a position of its own, a millisecond each."""
    works = [Work(ops=(op,)) for op in range(len(step.ops))]
    return page_step(step, works, [1e-3] * len(works), lambda ops: 1e-3 * len(ops), **LINK, **kwargs)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def alexnet() -> Step:
    return ty.zoo.load("alexnet", batch=8)


@pytest.fixture(scope="module")
def resnet() -> Step:
    return ty.zoo.load("resnet18", batch=8)


def entry(step: Step, found: PagedStep, layer: str, function: str, call: int | None = None) -> int:
    """The number of what an op of a layer made."""
    matches = [
        index
        for index, bases in enumerate(found.tensor_groups)
        if any(
            op.layer == layer and op.name.startswith(function) and step.base(op.outputs[0]) in bases and call in (None, op.call)
            for op in step.ops
            if op.outputs and op.phase == "forward"
        )
    ]
    assert len(matches) == 1, (layer, function, matches)
    return matches[0]


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "googlenet", "lstm-1", "bert-tiny"])
def test_everything_that_takes_memory_is_in_one_place(name: str) -> None:
    step = ty.zoo.load(name, batch=4)
    found = seen(step)
    sizes = Counter(size for _, size, _ in found.transients)
    sizes.update(step.tensors[base].bytes for bases in found.tensor_groups for base in bases)
    assert sizes == Counter(size for _, size in step.transients)
    apart = [base for bases in found.tensor_groups for base in bases] + [base for _, _, base in found.transients]
    assert len(apart) == len(set(apart))


def test_scores_of_a_fused_attention_are_not_saved() -> None:
    """Of 1024 tokens they would be the largest tensors of the step; its output and a number for each row are saved instead."""
    step = ty.zoo.load("gpt2-small", batch=4)
    found = seen(step)
    scores = 4 * 12 * 1024 * 1024 * 4
    logits = 4 * 1024 * 50_257 * 4
    layers = [
        entry.bytes for entry, layer in zip(found.problem.saved, found.layers, strict=True) if layer == "transformer.h.0.attn"
    ]
    assert layers
    assert max(layers) < scores / 4
    assert sum(entry.bytes for entry in found.problem.saved) < 12 * scores + 2 * logits
    assert max(size for _, size, _ in found.transients) <= logits


@pytest.mark.parametrize("moved", ["maps", "weights", "state", "all"])
@pytest.mark.parametrize("name", ["alexnet", "resnet18", "lstm-1"])
def test_with_all_kept_memory_is_that_of_the_step(name: str, moved: str) -> None:
    """By position, counted here once more from the step alone: whatever may be moved. What one op made stays together."""
    step = ty.zoo.load(name, batch=4)
    whole = seen(step, moved=moved)
    found = whole.problem
    expected = [step.resident_bytes] * len(step.ops)
    for users, size in step.transients:
        for position in range(min(users), max(users) + 1):
            expected[position] += size
    used = list(used_bytes(found, completed(found, ["keep"] * len(found.saved))))
    for bases in whole.tensor_groups:
        if len(bases) > 1:
            ends = [max(op for op, one in enumerate(step.ops) if base in map(step.base, one.inputs)) for base in bases]
            for base, end in zip(bases, ends, strict=True):
                for position in range(end + 1, max(ends) + 1):
                    expected[position] += step.tensors[base].bytes
    assert used == expected


def test_the_peak_is_the_engines(resnet: Step) -> None:
    works = V100.works(resnet)
    found = page_step(resnet, works, [1.0] * len(works), **LINK)
    timeline = engine.run(Single(device=V100).plan(resnet))
    assert found.peaks[0] == timeline.peak(0)


def test_a_normalised_map_is_made_again_from_the_convolution_before_it(resnet: Step) -> None:
    found = seen(resnet)
    saved = found.problem.saved
    convolution, relu = entry(resnet, found, "layer1.0.conv1", "convolution"), entry(resnet, found, "layer1.0.relu", "relu", call=0)
    between = entry(resnet, found, "layer1.0.bn1", "native_batch_norm")
    assert saved[convolution].recompute_s is None
    assert saved[between].first_backward == NEVER
    assert saved[between].sources == (convolution,)
    assert saved[relu].sources == (between,)
    assert [resnet.ops[op].name for op in (*found.chains[between], *found.chains[relu])] == ["native_batch_norm", "relu"]
    choice = offload_all(found.problem)
    assert choice.decisions[convolution] == "send"
    assert choice.decisions[relu] == "recompute"
    statistics = [size for _, size, base in found.transients if resnet.tensors[base].shape == (64,)]
    assert statistics, "mean and deviation stay"


def test_a_map_whose_source_is_gone_is_sent(alexnet: Step) -> None:
    found = seen(alexnet)
    saved = found.problem.saved
    relu, pool = entry(alexnet, found, "features.1", "relu"), entry(alexnet, found, "features.2", "max_pool2d")
    assert saved[relu].recompute_s is None
    assert saved[pool].sources == (relu,)
    assert [alexnet.tensors[base].dtype for base in found.tensor_groups[pool]] == ["fp32", "int64"]  # the indices come along
    assert offload_all(found.problem).decisions[relu] == "send"


def test_random_draws_are_not_repeated(alexnet: Step) -> None:
    found = seen(alexnet)
    saved = found.problem.saved
    mask, product = entry(alexnet, found, "classifier.3", "bernoulli"), entry(alexnet, found, "classifier.3", "mul")
    assert saved[mask].recompute_s is None
    assert saved[product].sources == tuple(sorted((mask, entry(alexnet, found, "classifier.2", "relu"))))
    with_products = seen(alexnet, products=True)
    again = [one.recompute_s is not None for one in with_products.problem.saved]
    assert again.count(False) == 2  # the two masks
    assert len(again) > len(saved)


def test_sources_hold_what_the_ops_read(resnet: Step) -> None:
    """Whatever an op of a chain reads is in its sources, its own entry, small and kept, or always there."""
    for step in (resnet, ty.zoo.load("googlenet", batch=4), ty.zoo.load("lstm-1", batch=4), ty.zoo.load("bert-tiny", batch=4)):
        found = seen(step)
        stays = {base for _, _, base in found.transients}
        for index, chain in enumerate(found.chains):
            there = {base for source in found.problem.saved[index].sources for base in found.tensor_groups[source]}
            for op in chain:
                assert not step.ops[op].is_product
                for base in map(step.base, step.ops[op].inputs):
                    known = base in there or base in found.tensor_groups[index] or step.tensors[base].role.resident
                    small = base in stays and any(step.ops[user].phase.backward for user in _users(found, base))
                    assert known or small, (step.name, step.ops[op].name)


def _users(found: PagedStep, base: int) -> tuple[int, ...]:
    return next(users for users, _, other in found.transients if other == base)


def test_weights_leave_between_their_uses(alexnet: Step) -> None:
    found = seen(alexnet, moved="all")
    problem = found.problem
    stretches = [index for index, resident in enumerate(found.resident) if resident]
    assert {alexnet.tensors[found.tensors[index]].role for index in stretches} == {Role.PARAMETER, Role.STATE}
    over = [index for index in stretches if problem.saved[index].wraps]
    assert len({found.tensors[index] for index in stretches}) == len(over)
    decisions = ["send" if index in stretches else "keep" for index in range(len(problem.saved))]
    away, kept = simulate(problem, decisions), simulate(problem, ["keep"] * len(decisions))
    assert max(away.used_bytes) < max(kept.used_bytes) - 200e6  # 244 MB of weights and as much state, two thirds in one layer
    weight = next(index for index in stretches if problem.saved[index].clean_after is not None)
    assert problem.saved[problem.saved[weight].clean_after].wraps
    assert found.tensors[problem.saved[weight].clean_after] == found.tensors[weight]
    written = sum(problem.saved[index].bytes for index in simulate(problem, decisions).out_order)
    assert written == sum(problem.saved[index].bytes for index in over)  # each version leaves once


def _made(tensors: list[TensorSpec], *ops: tuple[Phase, object, tuple[int, ...], tuple[int, ...]]) -> Step:
    built = tuple(
        Op(body=body, name=str(index), layer=f"op{index}", phase=phase, inputs=inputs, outputs=outputs)  # type: ignore[arg-type]
        for index, (phase, body, inputs, outputs) in enumerate(ops)
    )
    return Step(name="made", batch=4, ops=built, tensors=tuple(tensors))


@pytest.mark.parametrize("overwritten", ["never", "before", "by the op itself", "after"])
def test_what_was_overwritten_since_makes_nothing_again(overwritten: str) -> None:
    """R is made from Y; where Y has another value later, it cannot give R again. Sigmoid's backward reads R, that of Y reads Y."""
    size = 4 * 4096
    tensors = [TensorSpec((4, 4096), role=Role.INPUT), TensorSpec((4096, 4096), role=Role.PARAMETER)]
    tensors += [TensorSpec((4, 4096), name="Y"), TensorSpec((4, 4096), name="Y", view_of=2), TensorSpec((4, 4096), name="R")]
    tensors += [TensorSpec((4, 4096), role=Role.GRADIENT) for _ in range(2)]
    product = (Phase.FORWARD, MatMul(4, 4096, 4096), (0, 1), (2,))
    in_place = (Phase.FORWARD, ElementWise("relu_", size), (2,), (3,))
    read = (Phase.FORWARD, ElementWise("sigmoid", size), (3 if overwritten == "before" else 2,), (4,))
    forward = {
        "never": (product, read),
        "before": (product, in_place, read),
        "by the op itself": (product, (Phase.FORWARD, ElementWise("sigmoid", size), (2,), (4, 3))),
        "after": (product, read, in_place),
    }[overwritten]
    backward = (
        (Phase.GRAD_INPUT, ElementWise("sigmoid_backward", size), (4,), (5,)),
        (Phase.GRAD_INPUT, ElementWise("threshold_backward", size), (5, 2 if overwritten == "never" else 3), (6,)),
    )
    found = seen(_made(tensors, *forward, *backward))
    names = [one.name for one in found.problem.saved]
    assert sorted(names) == ["R", "Y"]
    result = found.problem.saved[names.index("R")]
    if overwritten in ("never", "before"):
        assert (result.recompute_s, result.sources) == (1e-3, (names.index("Y"),))
    else:
        assert (result.recompute_s, result.sources) == (None, ())


def test_a_changed_weight_leaves_with_a_copy() -> None:
    """Read, read, changed, read: until the change the second memory has what left over the end of the step, then no more."""
    weight = TensorSpec((256, 256), role=Role.PARAMETER, name="layer.weight")
    tensors = [TensorSpec((4, 256), role=Role.INPUT), weight, TensorSpec((256, 256), role=Role.PARAMETER, view_of=1)]
    tensors += [TensorSpec((4, 256)) for _ in range(3)]
    uses = [(Phase.FORWARD, MatMul(4, 256, 256), (0, version), (made,)) for version, made in ((1, 3), (1, 4), (2, 5))]
    between = (Phase.FORWARD, ElementWise("relu", 4 * 256), (0,), (3,))
    update = (Phase.UPDATE, Update("SGD", 256 * 256), (1,), (2,))
    step = _made(tensors, uses[0], between, uses[1], between, update, between, uses[2], between)
    found = seen(step, moved="weights")
    stretches = [(one.last_forward, one.first_backward, one.clean_after) for one in found.problem.saved if one.name == weight.name]
    over = next(number for number, one in enumerate(found.problem.saved) if one.wraps)
    assert stretches == [(6, 0, None), (0, 2, over), (2, 4, over), (4, 6, None)]
    assert not any(one.clean for one in found.problem.saved)
    copies = simulate(found.problem, ["send" if resident else "keep" for resident in found.resident]).out_order
    assert sum(found.problem.saved[number].bytes for number in copies) == 2 * weight.bytes  # each version leaves once


def test_budgets_hold_on_a_network(resnet: Step) -> None:
    found = seen(resnet)
    most, least = found.peaks
    times = []
    for part in (0, 1, 4, 8):
        budget = least + (most - least) * part // 8
        choice = as_needed(found.problem, budget)
        assert choice.peak_bytes <= budget
        times.append(choice.time_s)
    assert times == sorted(times, reverse=True)
    with pytest.raises(BadInput, match=rf"nothing fits {least - 1:,} bytes: .* alone needs {least:,} bytes"):
        as_needed(found.problem, least - 1)


def test_bad_requests_are_refused(alexnet: Step) -> None:
    with pytest.raises(BadInput, match="79 works, 1 durations"):
        page_step(alexnet, [Work(ops=(op,)) for op in range(79)], [1.0], **LINK)
    with pytest.raises(BadInput, match="maps, weights, state, all"):
        seen(alexnet, moved="none")
