"""The step of one of several devices: nothing lost, nothing read that is not there, exchanges where they belong."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainyard as ty
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Collective, Convolution, ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec, Update
from trainyard.mapping.parallel import transform as parallel
from trainyard.mapping.works import group

QUICK = (
    "alexnet",
    "bert-tiny",
    "dlrm",
    "gcn",
    "googlenet",
    "linear",
    "lstm-1",
    "mobilenet",
    "ncf",
    "resnet18",
    "vgg16",
    "yolov2-tiny",
)
DIVIDING = ("alexnet", "vgg19", "resnet34", "lstm-1", "lstm-2", "rnn-gemv", "mobilenet")  # at 2, 4 and 8 devices
EVERY = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ty.zoo.names()]
RAGGED = 0.15  # pieces of 850 gates and of 425 gated features, of branches and of their concatenation, are not the same share
WAYS = {"data": parallel.data, "model": parallel.model, "mixed": parallel.mixed}


def whole_step(name, devices):
    step = ty.zoo.load(name)
    return step if step.batch % devices == 0 else step.rebatch(devices)


def exchanges(step):
    return [op for op in step.ops if isinstance(op.body, Collective)]


def ancestors(step):
    """Of each op all that it waits for, directly or not, as bits."""
    found = []
    for waits in step.dependencies:
        bits = 0
        for op in waits:
            bits |= found[op] | 1 << op
        found.append(bits)
    return found


def kept_ops(step):
    """Numbers of the ops that stand for one of the whole step each."""
    return [i for i, op in enumerate(step.ops) if not isinstance(op.body, Collective) and not op.name.endswith("_statistics")]


def sizes(step, op):
    """Elements that the body speaks of, beside those of the tensors."""
    read, written = ([step.tensors[t].elements for t in tensors] for tensors in (op.inputs, op.outputs))
    body = op.body
    if isinstance(body, MatMul) and len(read) > 1:
        said = [body.count * size for size in (body.M * body.K, body.K * body.N, body.M * body.N)]
        return list(zip(said, (*read[:2], written[0]), strict=True))
    if isinstance(body, Convolution) and len(read) > 1:
        said = [body.input_elements, body.output_elements, body.weight_elements]
        return list(zip(sorted(said), sorted((*read[:2], written[0])), strict=True))
    if isinstance(body, ElementWise | Update):
        return [(body.elements, written[0])] if written else []
    return []


def check(whole, mine, devices):
    """What holds for every way of sharing."""
    kept = kept_ops(mine)
    assert len(kept) == len(whole.ops)
    assert [mine.ops[i].layer for i in kept] == [op.layer for op in whole.ops]
    assert [(mine.ops[i].call, mine.ops[i].letters, mine.ops[i].phase) for i in kept] == [
        (op.call, op.letters, op.phase) for op in whole.ops
    ]
    for i, op in zip(kept, whole.ops, strict=True):  # no more than the whole, no less than a share
        assert op.macs <= devices * mine.ops[i].macs <= devices * op.macs
        for then, now in zip(sizes(whole, op), sizes(mine, mine.ops[i]), strict=True):
            assert now[0] == now[1] or now[1] == pytest.approx(now[0], rel=RAGGED) or then[0] != then[1], (i, op, mine.ops[i])
    written = {mine.base(t) for op in mine.ops for t in op.outputs}
    there = set()
    for op in mine.ops:
        assert all(
            base in there for base in map(mine.base, op.inputs) if base in written and not mine.tensors[base].role.resident
        ), op
        there.update(map(mine.base, op.outputs))
    for op in exchanges(mine):
        assert op.body.ranks == devices
        most = max(mine.tensors[t].elements for t in (*op.inputs, *op.outputs))
        assert op.body.elements == (sum(mine.tensors[t].elements for t in op.inputs) if len(op.inputs) > 1 else most)
    waits, now = ancestors(mine), dict(enumerate(kept))
    for i, before in enumerate(whole.dependencies):  # what waited, still does
        assert all(waits[now[i]] >> now[j] & 1 for j in before), (i, before)


@pytest.mark.parametrize("name", EVERY)
def test_every_network_on_eight_devices(name):
    whole = whole_step(name, 8)
    trained = sum(op.body.elements for op in whole.ops if isinstance(op.body, Update))
    for way, share in WAYS.items():
        mine = share(whole, 8)
        check(whole, mine, 8)
        if way == "data":
            assert 8 * mine.macs == whole.macs
            assert parallel.exchanged(mine) == {"all_reduce": trained}
        elif name != "linear":  # one output: seven devices have nothing to do
            assert 8 * mine.macs <= 1.05 * whole.macs
        if way == "model" and name != "linear":
            assert whole.parameters <= 8 * mine.parameters <= 1.02 * whole.parameters + 64
            assert 8 * sum(op.body.elements for op in mine.ops if isinstance(op.body, Update)) <= 1.02 * trained + 64
    assert parallel.carried_bytes(mine) <= min(
        parallel.carried_bytes(parallel.data(whole, 8)), parallel.carried_bytes(parallel.model(whole, 8))
    )


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3, 4, 16])
@pytest.mark.parametrize("name", EVERY)
def test_every_network_on_other_numbers_of_devices(name, devices):
    whole = whole_step(name, devices)
    for share in WAYS.values():
        check(whole, share(whole, devices), devices)
    for exchange in ("all_reduce", "reduce_scatter"):
        for stored in ("shard", "whole"):
            check(whole, parallel.model(whole, devices, exchange=exchange, stored=stored), devices)


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("name", DIVIDING)
def test_where_everything_divides_no_work_is_done_twice(name, devices):
    whole = whole_step(name, devices)
    for share in WAYS.values():
        assert devices * share(whole, devices).macs == whole.macs


@pytest.mark.parametrize("name", ["alexnet", "bert-tiny", "dlrm", "yolov2-tiny", "ncf", "t5-small", "lstm-1"])
def test_mixed_with_one_choice_for_all_is_that(name):
    whole = whole_step(name, 4)
    for mode, share in (("data", parallel.data), ("model", parallel.model)):
        mine, other = parallel.mixed(whole, 4, choice=dict.fromkeys(whole.layers, mode)), share(whole, 4)
        assert [op.body for op in mine.ops] == [op.body for op in other.ops]
        for spec, same, before in zip(mine.tensors, other.tensors, whole.tensors, strict=False):
            assert spec.elements == same.elements or before.view_of is not None


# -- data --


def test_an_update_waits_for_its_gradient_and_nothing_else_waits():
    whole = ty.zoo.load("alexnet", batch=512)
    mine = parallel.data(whole, 8)
    waits = ancestors(mine)
    exchanged = {i for i, op in enumerate(mine.ops) if isinstance(op.body, Collective)}
    for i, op in enumerate(mine.ops):
        first = [j for j in mine.dependencies[i] if j in exchanged]
        if isinstance(op.body, Update):
            assert len(first) == 1
            assert mine.ops[first[0]].body.elements == op.body.elements
        else:
            assert not any(waits[i] >> j & 1 for j in exchanged)
    for i in exchanged:  # as soon as the gradient is there
        assert mine.dependencies[i] == (i - 1,) or isinstance(mine.ops[i - 1].body, Collective)


def test_buckets_fill_up_and_are_sent_before_they_are_read():
    whole = ty.zoo.load("alexnet", batch=64)
    mine = parallel.data(whole, 8, bucket_bytes=25_000_000)
    sent = exchanges(mine)
    assert sum(op.body.elements for op in sent) == whole.parameters
    sizes_of = [[mine.tensors[t].bytes for t in op.inputs] for op in sent]
    for each in sizes_of[:-1]:
        assert sum(each) >= 25_000_000 > sum(each[:-1])  # full with the last, not before
    check(whole, mine, 8)
    everything = parallel.data(whole, 8, bucket_bytes=10**12)
    assert len(exchanges(everything)) == 1
    check(whole, everything, 8)


@pytest.mark.parametrize(("name", "steps", "calls"), [("lstm-1", 25, 25), ("rnn-gemv", 50, 50)])
def test_a_recurrent_layer_reduces_its_sum_or_every_step(name, steps, calls):
    whole = ty.zoo.load(name)
    once, each = parallel.data(whole, 8), parallel.data(whole, 8, reduce="every_call")
    assert parallel.exchanged(once)["all_reduce"] == whole.parameters
    assert parallel.exchanged(each)["all_reduce"] == steps * whole.parameters
    assert len(exchanges(each)) == calls * len(exchanges(once))
    check(whole, each, 8)
    additions = [i for i, op in enumerate(each.ops) if op.phase is Phase.GRAD_WEIGHT and isinstance(op.body, ElementWise)]
    arrived = {i for i, op in enumerate(each.ops) if isinstance(op.body, Collective)}
    for i in additions:  # a step's gradient is summed over devices before it is added
        assert arrived.intersection(each.dependencies[i])
    products = [i for i, op in enumerate(each.ops) if op.is_product]
    waits = ancestors(each)
    assert not any(waits[i] >> j & 1 for i in products for j in arrived)


def test_a_network_without_recurrence_is_the_same_for_every_call():
    whole = ty.zoo.load("alexnet", batch=8)
    assert parallel.data(whole, 8, reduce="every_call") == parallel.data(whole, 8)


def test_data_parallel_can_be_rebatched():
    whole = ty.zoo.load("resnet18", batch=64)
    assert parallel.data(whole, 8).rebatch(4).macs == parallel.data(ty.zoo.load("resnet18", batch=32), 8).macs


# -- model --


def maps(step, *phases):
    """Elements that products read as X (but for network inputs), each tensor once."""
    read = {}
    for op in step.ops:
        if op.is_product and op.phase in phases and "A" in op.letters:
            base = step.base(op.inputs[op.letters.index("A")])
            if step.tensors[base].role is not Role.INPUT:
                read[base] = step.tensors[base].elements
    return sum(read.values())


@pytest.mark.parametrize("name", ["alexnet", "vgg19", "resnet34", "squeezenet"])
def test_x_is_gathered_once_and_dx_reduced(name):
    whole = ty.zoo.load(name, batch=16)
    forward, backward = maps(whole, Phase.FORWARD), maps(whole, Phase.GRAD_WEIGHT)
    gradients = sum(whole.tensors[op.outputs[0]].elements for op in whole.ops if op.is_product and op.phase is Phase.GRAD_INPUT)
    small = 16 * 3 + 1  # the loss: two statistics and one a row, and itself
    again = parallel.exchanged(parallel.model(whole, 8))
    assert again == {"all_gather": forward + backward, "all_reduce": gradients + small}
    kept = parallel.exchanged(parallel.model(whole, 8, stored="whole"))
    assert kept == {"all_gather": forward, "all_reduce": gradients + small}
    pieces = parallel.exchanged(parallel.model(whole, 8, exchange="reduce_scatter"))
    assert pieces == {"all_gather": forward + backward, "all_reduce": small, "reduce_scatter": gradients}


def test_h_is_gathered_at_every_time_step():
    whole = ty.zoo.load("lstm-1")
    found = parallel.exchanged(parallel.model(whole, 8, stored="whole"))
    hidden = 512 * 512  # the first h is zero: filled in, not exchanged
    assert found == {"all_gather": 24 * hidden, "all_reduce": 24 * hidden + 1}


def saved_bytes(step):
    """What forward leaves for backward."""
    turn = next(i for i, op in enumerate(step.ops) if op.phase.backward)
    return sum(size for ops, size in step.transients if ops[0] < turn <= ops[-1])


@pytest.mark.parametrize("name", ["alexnet", "resnet34", "lstm-1"])
def test_pieces_or_the_whole_are_stored(name):
    whole = whole_step(name, 8)
    shard, everything = parallel.model(whole, 8), parallel.model(whole, 8, stored="whole")
    assert saved_bytes(shard) == pytest.approx(saved_bytes(whole) / 8, rel=0.2)
    assert saved_bytes(everything) > 1.5 * saved_bytes(shard)


def test_grouped_convolutions_exchange_nothing():
    whole = ty.zoo.load("mobilenet", batch=8)
    mine = parallel.model(whole, 8)
    grouped = {op.layer for op in whole.ops if isinstance(op.body, Convolution) and op.body.groups > 1}
    assert grouped
    assert not grouped & {op.layer for op in exchanges(mine)}
    assert all(op.body.groups == op.body.in_channels for op in mine.ops if op.layer in grouped and isinstance(op.body, Convolution))


def test_transposed_convolutions_are_cut_in_their_output_channels():
    whole = ty.zoo.load("mask-rcnn", batch=2)
    mine = parallel.model(whole, 8)
    turned = [
        i
        for i, op in enumerate(whole.ops)
        if isinstance(op.body, Convolution) and (op.body.product, op.phase) == ("grad_input", Phase.FORWARD)
    ]
    kept = kept_ops(mine)
    for i in turned:
        assert 8 * mine.ops[kept[i]].body.in_channels == whole.ops[i].body.in_channels
        assert mine.ops[kept[i]].body.out_channels == whole.ops[i].body.out_channels


def test_attention_is_cut_by_heads_or_by_pairs():
    whole = ty.zoo.load("bert-base", batch=8)  # 12 heads
    by_heads, by_pairs = parallel.model(whole, 4), parallel.model(whole, 8)
    products = [op for op in by_heads.ops if isinstance(op.body, MatMul) and op.body.count > 1]
    assert {op.body.count for op in products} == {24}
    attention = "bert.encoder.layer.0.attention.self"
    assert not [op for op in exchanges(by_heads) if op.layer == attention]
    assert [op for op in exchanges(by_pairs) if op.layer == attention]


def test_fewer_products_than_devices_stay_whole_and_say_so():
    whole = ty.zoo.load("bert-tiny", batch=1)  # two heads
    mine = parallel.model(whole, 8)
    assert "left whole on every device: " in mine.source
    assert max(op.body.count for op in mine.ops if isinstance(op.body, MatMul)) == 2


def test_a_table_shared_with_a_product_is_cut_in_rows():
    whole = ty.zoo.load("bert-base", batch=8)
    mine = parallel.model(whole, 8)
    table = next(spec for spec in mine.tensors if spec.name == "bert.embeddings.word_embeddings.weight")
    assert table.shape == (-(-30522 // 8), 768)
    assert [op.body.kind for op in exchanges(mine) if op.layer == "bert.embeddings.word_embeddings"] == ["all_reduce", "all_gather"]
    alone = next(spec for spec in mine.tensors if spec.name == "bert.embeddings.position_embeddings.weight")
    assert alone.shape == (512, 96)


def test_normalisation_over_features_exchanges_statistics_alone():
    mine = parallel.model(ty.zoo.load("bert-base", batch=8), 8)
    layer = "bert.encoder.layer.3.output.LayerNorm"
    assert [op.body.elements for op in exchanges(mine) if op.layer == layer] == [2 * 8 * 128] * 2
    assert not [op for op in exchanges(parallel.model(ty.zoo.load("resnet34", batch=8), 8)) if "bn" in op.layer]


def test_more_devices_than_features_leave_one_each():
    tensors = (
        TensorSpec((4, 6), role=Role.INPUT),
        TensorSpec((10, 6), role=Role.PARAMETER),
        TensorSpec((6, 10), role=Role.PARAMETER, view_of=1),
        TensorSpec((4, 10)),
    )
    product = Op(body=MatMul(4, 10, 6), layer="classes", inputs=(0, 2), outputs=(3,), letters=("A", "W"))
    mine = parallel.model(Step(name="made", batch=4, ops=(product,), tensors=tensors), 16)
    assert mine.ops[0].body == MatMul(4, 1, 6)
    assert [spec.shape for spec in mine.tensors] == [(4, 6), (1, 6), (6, 1), (4, 1)]


def test_exchanges_do_not_hide_in_the_works_of_a_device():
    """No element-wise op is done with a product whose sum is not there yet."""
    for stored in ("shard", "whole"):
        mine = parallel.model(ty.zoo.load("alexnet", batch=8), 8, stored=stored)
        place = {op: number for number, work in enumerate(group(mine, "epilogue")) for op in work.ops}
        for i, waits in enumerate(mine.dependencies):
            assert all(place[j] <= place[i] for j in waits)
        assert len({place[i] for i, op in enumerate(mine.ops) if isinstance(op.body, Collective)}) == len(exchanges(mine))


# -- mixed --


def test_one_weird_trick():
    """Convolutions share the batch, fully connected layers their features (Krizhevsky 2014), at its batch of 128 for each of 8."""
    whole = ty.zoo.load("alexnet", batch=1024)
    mine = parallel.mixed(whole, 8)
    for op in mine.ops:
        if isinstance(op.body, Convolution):
            assert op.body.batch == 128
        if isinstance(op.body, MatMul) and op.phase is Phase.FORWARD:
            assert op.body.M == 1024
    assert mine == parallel.mixed(whole, 8, choice={"classifier": "model"})
    border = [op for op in exchanges(mine) if op.layer == "classifier.1"]
    flat = 1024 * 9216
    assert [(op.body.kind, op.body.elements) for op in border] == [
        ("all_gather", flat),
        ("reduce_scatter", flat),
        ("all_gather", flat),
    ]
    assert (
        parallel.carried_bytes(mine)
        < parallel.carried_bytes(parallel.data(whole, 8))
        < parallel.carried_bytes(parallel.model(whole, 8))
    )


def test_a_choice_names_layers_or_what_they_are_part_of():
    whole = ty.zoo.load("resnet18", batch=8)
    part = parallel.mixed(whole, 8, choice={"layer4": "model", "layer4.0": "data"})
    cut = {op.layer for op in part.ops if isinstance(op.body, Convolution) and op.body.batch == 8}
    assert cut == {"layer4.1.conv1", "layer4.1.conv2"}
    check(whole, part, 8)


# -- what cannot be --


def test_errors_say_what_to_write_instead():
    whole = ty.zoo.load("alexnet", batch=12)
    with pytest.raises(BadInput, match="batch of 12 does not divide over 8 devices"):
        parallel.data(whole, 8)
    with pytest.raises(BadInput, match="batch of 12 does not divide over 8 devices"):
        parallel.mixed(whole, 8)
    with pytest.raises(BadInput, match="devices must be a positive whole number"):
        parallel.model(whole, 0)
    with pytest.raises(BadInput, match="bucket_bytes"):
        parallel.data(whole, 4, bucket_bytes=-1)
    with pytest.raises(UnknownName, match="every_call"):
        parallel.data(whole, 4, reduce="every call")
    with pytest.raises(UnknownName, match="reduce_scatter"):
        parallel.model(whole, 4, exchange="scatter")
    with pytest.raises(UnknownName, match="classifier"):
        parallel.mixed(whole, 4, choice={"clasifier": "model"})
    with pytest.raises(UnknownName, match="model"):
        parallel.mixed(whole, 4, choice={"classifier": "modle"})
    assert parallel.data(whole, 1) is whole
    with pytest.raises(BadInput, match="names no tensors"):
        parallel.data(Step(name="sizes alone", batch=8, ops=(Op(body=MatMul(8, 4, 4)),), tensors=()), 2)


def test_a_step_with_exchanges_of_its_own_stays_as_it_is():
    whole = ty.zoo.load("alexnet", batch=8)
    shared = replace(whole, ops=(*whole.ops, Op(body=Collective("all_reduce", 64, 4), inputs=(0,), outputs=(0,))))
    for share in WAYS.values():
        assert share(shared, 4) is shared
        with pytest.raises(BadInput, match="exchanges between 4 ranks, not 8: give devices=4"):
            share(shared, 8)


@pytest.mark.parametrize("share", [parallel.data, parallel.model])
def test_thousands_of_ops_take_a_moment(share):
    from time import process_time

    whole = ty.zoo.load("gru")
    share(whole, 8)
    start = process_time()
    share(whole, 4)
    assert process_time() - start < 1.5  # 0.2 s on an idle machine
