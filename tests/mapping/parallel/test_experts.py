"""Expert parallelism: what is exchanged and multiplied on a device, against tokens that are sent one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mapping.parallel.mixtures import EXPERTS, HIDDEN, LENGTH, TOP, WIDTH, Mixture, Sizes, captured
from torch.utils.checkpoint import checkpoint

import trainyard as ty
from oracles.expert_execution import balanced, dense, execute
from trainyard.errors import BadInput
from trainyard.ir import Collective, Copy, ElementWise, Gather, MatMul, Op, Phase, Reduction, Role, Step, Update
from trainyard.mapping.parallel import transform as parallel
from trainyard.mapping.parallel.experts import ExpertParallel, _scaled, ranks_of, rows_at, spread

STEP = captured()


def exchanges(step: Step, kind: str = "all_to_all") -> list[Op]:
    return [op for op in step.ops if isinstance(op.body, Collective) and op.body.kind == kind]


@pytest.mark.oracle
@given(ranks=st.sampled_from([1, 2, 4, 8]), tokens=st.sampled_from([4, 8, 12]), seed=st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_ranks_that_send_rows_to_experts_compute_what_one_device_does(ranks: int, tokens: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    x, gradient = draw.standard_normal((2, ranks, tokens, 5))
    up, down = draw.standard_normal((EXPERTS, 5, 6)), draw.standard_normal((EXPERTS, 6, 5))
    choices = [draw.integers(0, EXPERTS, (tokens, TOP)) for _ in range(ranks)]
    ours = execute(list(x), choices, up, down, list(gradient))
    outputs, back, up_back, down_back = dense(x.reshape(-1, 5), np.concatenate(choices), up, down, gradient.reshape(-1, 5))
    for actual, expected in (
        (ours.outputs, outputs),
        (ours.input_gradients, back),
        (ours.up_gradients, up_back),
        (ours.down_gradients, down_back),
    ):
        np.testing.assert_allclose(np.concatenate(actual), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.oracle
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_an_exchange_carries_the_elements_of_the_rows_whose_experts_are_elsewhere(ranks: int) -> None:
    """Dispatch and combine, forward and back: four times tokens x top-k x width x (n - 1)/n."""
    tokens = STEP.batch // 8 * LENGTH
    one = spread(STEP, 8, ExpertParallel(ranks=ranks))
    choices = [balanced(tokens, EXPERTS, TOP)] * ranks
    x = [np.ones((tokens, WIDTH))] * ranks
    counted = execute(x, choices, np.ones((EXPERTS, WIDTH, 1)), np.ones((EXPERTS, 1, WIDTH)), x).left
    assert len(exchanges(one)) == len(counted) == 4
    for op, left in zip(exchanges(one), counted, strict=True):
        assert isinstance(op.body, Collective)
        assert {op.body.elements * (ranks - 1) // ranks} == set(left) == {tokens * TOP * WIDTH * (ranks - 1) // ranks}
        assert op.body.members == tuple(range(ranks))


@pytest.mark.parametrize("biased", [False, True])
def test_rows_travel_twice_forward_and_twice_back_and_nothing_else_does(biased: bool) -> None:
    one = spread(captured(biased=biased), 8)
    assert [op.phase.backward for op in exchanges(one)] == [False, False, True, True]
    assert {one.tensors[op.inputs[0]].shape for op in exchanges(one)} == {(LENGTH * TOP, WIDTH)}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_device_multiplies_as_much_as_under_data_parallelism_in_fewer_and_larger_products(ranks: int) -> None:
    plain, one = parallel.data(STEP, 8), spread(STEP, 8, ExpertParallel(ranks=ranks))
    assert one.macs == plain.macs
    whole, own = (next(op.body for op in step.ops if op.routing is not None) for step in (plain, one))
    assert isinstance(whole, MatMul)
    assert own == MatMul(whole.M * ranks, whole.N, whole.K, EXPERTS // ranks)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_device_keeps_its_experts_and_their_state_and_all_of_the_rest(ranks: int, biased: bool) -> None:
    step = captured(biased=biased)
    one = spread(step, 8, ExpertParallel(ranks=ranks))
    experts = EXPERTS * (3 * WIDTH * HIDDEN + biased * (2 * HIDDEN + WIDTH))
    others = step.parameters - experts
    assert one.parameters == others + experts // ranks
    for role in (Role.STATE, Role.PARAMETER_GRADIENT):
        kept = sum(spec.elements for spec in one.tensors if spec.view_of is None and spec.role is role)
        whole = sum(spec.elements for spec in step.tensors if spec.view_of is None and spec.role is role)
        assert whole - kept == (2 if role is Role.STATE else 1) * (experts - experts // ranks)
    updates = sum(op.body.elements for op in one.ops if op.phase is Phase.UPDATE and hasattr(op.body, "elements"))
    assert updates == others + experts // ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_biases_are_picked_from_the_rows_of_the_experts_of_a_device(ranks: int) -> None:
    """Two tables in forward, and two that backward adds into; the device's rows are as many as its tokens' own."""
    step = captured(biased=True)
    one = spread(step, 8, ExpertParallel(ranks=ranks))
    tables = [op.body for op in one.ops if isinstance(op.body, Gather) and op.body.table_rows <= EXPERTS]
    widths = [2 * HIDDEN, WIDTH, WIDTH, 2 * HIDDEN]
    assert tables == [Gather(LENGTH * TOP, width, EXPERTS // ranks, scatter=n > 1) for n, width in enumerate(widths)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_gradients_of_experts_are_summed_over_their_replicas_alone(ranks: int) -> None:
    one = spread(STEP, 8, ExpertParallel(ranks=ranks))
    experts = EXPERTS * 3 * WIDTH * HIDDEN
    bodies = [op.body for op in exchanges(one, "all_reduce") if isinstance(op.body, Collective)]
    assert sum(body.elements for body in bodies if body.group == "world") == STEP.parameters - experts
    others = [body for body in bodies if body.group != "world"]
    assert sum(body.elements for body in others) == (experts // ranks if ranks < 8 else 0)
    assert {body.members for body in others} == ({tuple(range(0, 8, ranks))} if ranks < 8 else set())


def test_a_layer_that_is_computed_again_exchanges_its_rows_again() -> None:
    model = Mixture(Sizes(), biased=False, dtype=torch.float32)
    forward = model.forward
    inputs = torch.empty(8, LENGTH, WIDTH)

    def train(batch: int) -> None:
        x = inputs[:1].expand(batch, LENGTH, WIDTH).clone()
        for _ in range(2):  # gradients add up over two passes
            checkpoint(forward, x, use_reentrant=False).sum().backward()  # type: ignore[no-untyped-call]

    one = spread(ty.capture(train, batch=8, model=model), 8)
    again = [op.recompute for op in exchanges(one)]
    assert len(again) == 12
    assert sum(again) == 4
    assert sum(op.body.elements for op in exchanges(one, "all_reduce") if isinstance(op.body, Collective)) == (
        STEP.parameters - EXPERTS * 3 * WIDTH * HIDDEN
    )


def test_experts_are_shared_by_as_many_devices_as_divide_them_evenly() -> None:
    assert spread(STEP.rebatch(12), 12) == spread(STEP.rebatch(12), 12, ExpertParallel(ranks=4))
    assert spread(STEP.rebatch(16), 16) == spread(STEP.rebatch(16), 16, ExpertParallel(ranks=8))


@pytest.mark.parametrize("length", [12, 7])
def test_layers_divided_by_features_divide_the_products_of_every_expert(length: int) -> None:
    """Rows that do not divide evenly over experts too, under every layout."""
    step = captured(sizes=Sizes(length=length))
    model, mixed = parallel.model(step, 8), parallel.mixed(step, 8, choice={"first": "model"})
    assert sum(op.macs for op in mixed.ops if op.routing) == sum(op.macs for op in step.rebatch(1).ops if op.routing)
    assert sum(op.macs for op in model.ops if op.routing) == sum(op.macs for op in step.ops if op.routing) // 8


def test_one_rank_is_data_parallelism_and_one_device_is_alone() -> None:
    assert spread(STEP, 8, ExpertParallel(ranks=1)) == parallel.data(STEP, 8)
    assert spread(STEP, 1) == STEP


@given(imbalance=st.floats(1, 4), capacity=st.none() | st.floats(0.1, 4))
@settings(max_examples=25, deadline=None)
def test_the_busiest_device_has_its_load_of_rows_and_the_mean_conserves_what_is_not_dropped(imbalance, capacity) -> None:
    plan = ExpertParallel(imbalance=imbalance, capacity_factor=capacity)
    busiest, mean = spread(STEP, 8, plan), spread(STEP, 8, plan, device="mean")
    routed = next(op.routing for op in spread(STEP, 8).ops if op.routing is not None)
    rows = [next(op.routing.rows for op in step.ops if op.routing is not None) for step in (busiest, mean)]
    assert plan.load * routed.rows <= rows[0] < plan.load * routed.rows + routed.groups or rows[0] == 1
    if capacity is None:
        assert mean == spread(STEP, 8)
    assert rows[1] <= min(rows[0], routed.rows)
    assert len(busiest.ops) == len(mean.ops)
    for op in exchanges(busiest):
        assert isinstance(op.body, Collective)
        assert op.body.elements == rows[0] * WIDTH


def test_rows_grow_with_the_load_in_whole_rows_for_each_expert() -> None:
    assert [rows_at(load / 4, 24, 4) for load in range(4, 9)] == [24, 32, 36, 44, 48]


def test_experts_that_do_not_divide_and_steps_without_experts_are_refused() -> None:
    with pytest.raises(BadInput, match=r"8 experts do not divide over 6 devices: give experts\.ranks=2"):
        spread(STEP.rebatch(6), 6, ExpertParallel(ranks=6))
    with pytest.raises(BadInput, match="8 experts do not divide over 5 devices: give another number of devices"):
        spread(STEP.rebatch(5), 5)
    with pytest.raises(BadInput, match="3 ranks do not divide 8 devices"):
        spread(STEP, 8, ExpertParallel(ranks=3))
    with pytest.raises(BadInput, match="at most 2 times the mean"):
        spread(STEP, 8, ExpertParallel(ranks=2, imbalance=2.5))
    with pytest.raises(BadInput, match="no grouped products"):
        spread(ty.zoo.load("bert-tiny", batch=8), 8)
    with pytest.raises(BadInput, match="exchanges of its own"):
        spread(parallel.data(STEP, 8), 8)
    for wrong in ({"imbalance": 0.5}, {"capacity_factor": 0}, {"ranks": 0}, {"imbalance": float("nan")}):
        with pytest.raises(BadInput):
            ExpertParallel(**wrong)


# fmt: off
SCALED = [
    (ElementWise("mul", 100, 2),          0.25, ElementWise("mul", 25, 2)),
    (ElementWise("mul", 3),               0.1,  ElementWise("mul", 1)),            # never nothing
    (Copy("clone", 10),                   1.5,  Copy("clone", 15)),
    (Update("adam", 10, 4),               0.5,  Update("adam", 5, 4)),
    (Reduction("softmax", 10, 10, 3),     0.5,  Reduction("softmax", 5, 5, 3)),
    (Reduction("sum", 10, 4),             0.5,  Reduction("sum", 5, 4)),           # as many sums of fewer elements
    (Gather(10, 4, 8),                    0.5,  Gather(10, 4, 4)),                 # from a smaller table
    (MatMul(4, 4, 4),                     0.5,  MatMul(4, 4, 4)),
]
# fmt: on


@pytest.mark.parametrize(("body", "ratio", "expected"), SCALED)
def test_a_body_of_so_many_times_the_elements(body, ratio, expected) -> None:  # type: ignore[no-untyped-def]
    assert _scaled(body, ratio) == expected


def test_the_busiest_drops_what_is_above_its_capacity_and_the_mean_loses_its_share_of_that() -> None:
    assert ExpertParallel(imbalance=2.0).load == 2.0
    assert ExpertParallel(imbalance=2.0, capacity_factor=3.0).load == 2.0
    assert ExpertParallel(imbalance=2.0, capacity_factor=1.5).mean_load(4) == 1 - 0.5 / 4
    assert ExpertParallel(imbalance=2.0, capacity_factor=0.5).mean_load(4) == 0.5
    assert ExpertParallel(imbalance=2.0).mean_load(4) == 1.0


def test_devices_that_share_experts_divide_them_and_the_devices() -> None:
    for devices, ranks, found in ((8, None, 8), (12, None, 4), (16, None, 8), (8, 2, 2), (1, None, 1), (8, 1, 1)):
        assert ranks_of(STEP, devices, ExpertParallel(ranks=ranks)) == found


@pytest.mark.parametrize("ranks", [2, 8])
def test_an_exchange_stands_where_its_rows_are_read_and_its_result_is_as_large_as_the_rows(ranks: int) -> None:
    one = spread(STEP, 8, ExpertParallel(ranks=ranks, imbalance=1.5))
    rows = rows_at(1.5, LENGTH * TOP, EXPERTS // ranks)
    shapes = [(one.tensors[op.inputs[0]].shape, one.tensors[op.outputs[0]].shape) for op in exchanges(one)]
    there, here = (rows, WIDTH), (LENGTH * TOP, WIDTH)
    assert shapes == [(here, there), (there, here)] * 2
    assert {op.body.group for op in exchanges(one) if isinstance(op.body, Collective)} == {",".join(map(str, range(ranks)))}
    for op in exchanges(one):
        reader = next(other for other in one.ops[one.ops.index(op) + 1 :] if op.outputs[0] in map(one.base, other.inputs))
        assert (op.phase, op.recompute) == (reader.phase, reader.recompute)


@pytest.mark.parametrize("biased", [False, True])
def test_ops_on_expert_rows_have_the_rows_of_the_busiest_device(biased: bool) -> None:
    """Activations and their gradients between the grouped products; sums over rows keep their results, fewer by the ranks."""
    step = captured(biased=biased)
    plain, one = parallel.data(step, 8), spread(step, 8, ExpertParallel(ranks=4, imbalance=2.0))
    rows = rows_at(2.0, LENGTH * TOP, EXPERTS // 4)
    assert rows == 2 * LENGTH * TOP

    def element_wise(of: Step) -> list[int]:
        return sorted(op.body.elements for op in of.ops if isinstance(op.body, ElementWise) and op.phase is not Phase.UPDATE)

    hidden = LENGTH * TOP * HIDDEN
    assert element_wise(plain).count(hidden) > 0
    assert element_wise(one).count(2 * hidden) >= element_wise(plain).count(hidden)
    assert [op.body.M for op in one.ops if op.routing and isinstance(op.body, MatMul) and op.phase is Phase.FORWARD] == [
        rows // (EXPERTS // 4)
    ] * 2


@pytest.mark.parametrize("ranks", [2, 8])
def test_memory_is_added_for_what_an_exchange_brings_and_for_nothing_else(ranks: int) -> None:
    """Results of grouped products lie where they did, as large as the rows of the device."""
    whole, one = STEP.rebatch(1), spread(STEP, 8, ExpertParallel(ranks=ranks, imbalance=1.5))
    received = {op.outputs[0] for op in exchanges(one)}
    own = {number for number, spec in enumerate(one.tensors) if spec.view_of is None}
    kept = {number for number, spec in enumerate(whole.tensors) if spec.view_of is None}
    assert len(own) == len(kept) + len(received)
    assert received <= own
    rows = rows_at(1.5, LENGTH * TOP, EXPERTS // ranks)
    results = {one.base(op.outputs[0]) for op in one.ops if op.routing is not None and op.phase is not Phase.GRAD_WEIGHT}
    assert {one.tensors[base].shape[0] for base in results} == {rows}
    assert not results & received


def test_a_reduction_with_rows_beside_its_sums_keeps_all_its_results() -> None:
    """Only where all that it writes belongs to experts it writes a device's part of it."""
    product = next(n for n, op in enumerate(STEP.ops) if op.routing is not None)
    rows = STEP.ops[product].outputs[0]
    weight_gradient = next(op.outputs[0] for op in STEP.ops if op.routing is not None and op.phase is Phase.GRAD_WEIGHT)
    elements = STEP.tensors[rows].elements
    for outputs, results in (((len(STEP.tensors),), 64), ((len(STEP.tensors), weight_gradient), 64), ((weight_gradient,), 16)):
        norm = Op(body=Reduction("norm", elements, 64), name="norm", inputs=(rows,), outputs=outputs)
        ops = (*STEP.ops[: product + 1], norm, *STEP.ops[product + 1 :])
        step = replace(STEP, ops=ops, tensors=(*STEP.tensors, STEP.tensors[rows]))
        (found,) = (op.body for op in spread(step, 8, ExpertParallel(ranks=4)).ops if op.name == "norm")
        assert isinstance(found, Reduction)
        assert found.results == results


def test_rows_that_were_written_over_travel_again() -> None:
    """Results of experts are combined. Tokens that read them once more find them; rectified in place, they travel again."""
    rows = [op.outputs[0] for op in STEP.ops if op.routing is not None and op.phase is Phase.FORWARD][-1]
    place = next(n for n, op in enumerate(STEP.ops) if rows in map(STEP.base, op.inputs) and op.routing is None) + 1
    reader, version, result = STEP.ops[place - 1], len(STEP.tensors), len(STEP.tensors) + 1
    tensors = (*STEP.tensors, replace(STEP.tensors[rows], view_of=rows), replace(STEP.tensors[reader.outputs[0]], view_of=None))
    over = Op(body=ElementWise("relu_", STEP.tensors[rows].elements), name="relu_", inputs=(rows,), outputs=(version,))
    same = replace(reader, outputs=(result,))
    new = replace(same, inputs=tuple(version if tensor == rows else tensor for tensor in reader.inputs))
    for added, travels in (((), 4), ((same,), 4), ((over, new), 5)):
        step = replace(STEP, ops=(*STEP.ops[:place], *added, *STEP.ops[place:]), tensors=tensors)
        assert len(exchanges(spread(step, 8, ExpertParallel(ranks=4)))) == travels
