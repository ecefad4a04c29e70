"""Zeros made up for a step: shares, clusters, keys and shapes that views accept, and errors that say what to write."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import trainyard as ty
from trainyard.devices.accelerator.masked_tiles import viewer
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.ir import DENSE, Convolution, MatMul, Op, Phase, Role, Step, TensorSpec
from trainyard.mapping.lowering import lower
from trainyard.masks.generated import GeneratedMasks, generated_masks, parse
from trainyard.masks.views import extents, matrix, unpacked


@pytest.fixture(scope="module")
def resnet():
    return ty.zoo.load("resnet18", batch=2)


def convolution(batch=4):
    body = Convolution(batch=batch, in_channels=20, out_channels=30, size=(6, 5), kernel=(3, 3))
    ops = tuple(
        Op(body=body.as_product(product), layer="net.conv", phase=Phase(phase))
        for product, phase in (("forward", "forward"), ("grad_input", "grad_input"), ("grad_weight", "grad_weight"))
    )
    return Step(name="made", batch=batch, ops=ops, tensors=())


def test_each_letter_has_its_share_of_zeros(resnet):
    masks = generated_masks(resnet, {"A": 0.6, "G": 0.5}, seed=3)
    zeros = {"A": [0, 0], "G": [0, 0], "W": [0, 0]}
    for key, shape in masks.shapes.items():
        bits = masks.bits(key)
        assert bits.shape == shape == masks.spec(key).shape
        assert bits.dtype == np.bool_
        assert masks.spec(key).density == pytest.approx(masks.density(key), abs=1 / bits.size)
        zeros[key[2]][0] += int((~bits).sum())
        zeros[key[2]][1] += bits.size
    for letter, share in (("A", 0.6), ("G", 0.5), ("W", 0.0)):
        actual, elements = zeros[letter]
        assert abs(actual / elements - share) <= 4 * np.sqrt(share * (1 - share) / elements)


def test_bits_come_from_the_seed_and_the_key_alone(resnet):
    first, second = generated_masks(resnet, seed=1), generated_masks(resnet, seed=1)
    keys = list(first.shapes)[:9]
    bits = {key: first.bits(key) for key in keys}
    assert all(np.array_equal(second.bits(key), bits[key]) for key in reversed(keys))
    assert first.digest == second.digest
    for other in (
        generated_masks(resnet, seed=2),
        generated_masks(resnet, {"A": 0.5}, seed=1),
        generated_masks(resnet, cluster="row", seed=1),
        generated_masks(resnet, seed=1, layers={"layer1.*": {"A": 0.1}}),
        generated_masks(resnet.rebatch(3), seed=1),
    ):
        assert other.digest != first.digest
    assert not np.array_equal(generated_masks(resnet, seed=2).bits(keys[0]), bits[keys[0]])
    same_shape = [key for key in first.shapes if first.shapes[key] == first.shapes["layer1.0.conv2", 0, "A"] and key[2] == "A"]
    assert len(same_shape) > 1
    assert len({first.bits(key).tobytes() for key in same_shape}) == len(same_shape)


def test_the_order_of_patterns_is_in_the_digest(resnet):
    """The first pattern that matches a layer counts, so that another order has other bits; those are kept by digest."""
    wide, narrow = ("layer1.*", {"A": 0.9}), ("layer1.0.*", {"A": 0.1})
    first, second = (generated_masks(resnet, seed=1, layers=dict(order)) for order in ((wide, narrow), (narrow, wide)))
    key = ("layer1.0.conv2", 0, "A")
    assert first.bits(key).mean() < 0.2 < 0.8 < second.bits(key).mean()
    assert first.digest != second.digest


def test_cluster_channel_zeroes_whole_channels():
    masks = generated_masks(convolution(), {"A": 0.25, "G": 0.5, "W": 0.1}, cluster="channel")
    for letter, channels in (("A", 15), ("G", 15), ("W", 18)):
        bits = masks.bits(("net.conv", 0, letter))
        used = bits.any(axis=(0, 2, 3))
        assert used.sum() == channels
        assert np.array_equal(bits, np.broadcast_to(used[None, :, None, None], bits.shape))
        assert masks.density(("net.conv", 0, letter)) == bits.mean()


def test_cluster_row_zeroes_whole_rows():
    masks = generated_masks(convolution(), {"A": 0.25, "G": 0.5, "W": 0.1}, cluster="row")
    for letter, rows in (("A", 90), ("G", 24)):
        bits = masks.bits(("net.conv", 0, letter))
        assert np.array_equal(bits.any(axis=1), bits.all(axis=1))
        assert bits.any(axis=1).sum() == rows
    filters = masks.bits(("net.conv", 0, "W")).reshape(30, -1)
    assert np.array_equal(filters.any(axis=1), filters.all(axis=1))
    assert filters.any(axis=1).sum() == 27


def test_rows_of_tokens_and_features_of_matrices():
    step = Step(name="made", batch=4, ops=(Op(body=MatMul(40, 6, 16), layer="fc", letters=("A", "W")),), tensors=())
    rows = generated_masks(step, {"A": 0.5}, cluster="row").bits(("fc", 0, "A"))
    assert rows.shape == (40, 16)
    assert rows.all(axis=1).sum() == 20 == (~rows.any(axis=1)).sum()
    features = generated_masks(step, {"A": 0.5}, cluster="channel").bits(("fc", 0, "A"))
    assert features.all(axis=0).sum() == 8 == (~features.any(axis=0)).sum()


def test_layers_that_match_a_pattern_have_their_own_shares(resnet):
    masks = generated_masks(resnet, {"A": 0.5}, layers={"layer4.*": {"A": 0.9, "W": 0.9}, "layer*": {"A": 0.1}})
    assert masks.density(("layer4.0.conv2", 0, "A")) == pytest.approx(0.1)
    assert masks.density(("layer4.0.conv2", 0, "W")) == pytest.approx(0.1)
    assert masks.density(("layer1.0.conv2", 0, "A")) == pytest.approx(0.9)
    assert masks.density(("conv1", 0, "A")) == pytest.approx(0.5)
    with pytest.raises(UnknownName, match="unknown layer 'layr4'"):
        generated_masks(resnet, layers={"layr4": {"A": 0.9}})
    with pytest.raises(BadInput, match=r"A of layers 'layer4\.\*' is a share of zeros between 0 and 1, got 90"):
        generated_masks(resnet, layers={"layer4.*": {"A": 90}})


@pytest.mark.parametrize("name", ["resnet18", "mobilenet", "bert-tiny", "snli", "lstm-1", "gru", "dlrm", "squeezenet"])
def test_every_operand_of_a_model_has_a_mask_of_its_matrix(name):
    """Whatever the product, forward or backward, unrolled or batched; attention's own products have no letters."""
    step = ty.zoo.load(name, batch=2)
    masks = generated_masks(step)
    masks.check(step)
    for op in step.ops:
        for side in (0, 1) if op.is_product else ():
            for form in ("col2im", "dilated"):
                product = lower(op.body, form).product
                rows, columns = (product.M, product.K) if side == 0 else (product.K, product.N)
                view = viewer(step, op, form, masks, side)(product.count - 1, (0, rows), (0, columns))
                if view is DENSE:
                    assert not any(op.letters)
                    continue
                height, width = extents(view)
                groups = product.count
                assert (height, width) == ((groups * columns, rows) if view.transposed else (groups * rows, columns))


def test_operands_of_one_letter_get_one_mask_per_tensor():
    """Two matrices in one call, as in a cell; the gradient goes into both products."""
    tensors = (
        TensorSpec((4, 6)), TensorSpec((4, 5)), TensorSpec((8, 6), role=Role.PARAMETER), TensorSpec((8, 5), role=Role.PARAMETER),
        TensorSpec((4, 8)), TensorSpec((4, 8)), TensorSpec((4, 8), role=Role.GRADIENT), TensorSpec((8, 4), view_of=6),
        TensorSpec((8, 6)), TensorSpec((8, 5)),
    )  # fmt: skip
    gradient = {"layer": "cell", "phase": Phase.GRAD_WEIGHT, "letters": ("G", "A")}
    ops = (
        Op(body=MatMul(4, 8, 6), layer="cell", inputs=(0, 2), outputs=(4,), letters=("A", "W")),
        Op(body=MatMul(4, 8, 5), layer="cell", inputs=(1, 3), outputs=(5,), letters=("A", "W")),
        Op(body=MatMul(8, 6, 4), inputs=(7, 0), outputs=(8,), **gradient),
        Op(body=MatMul(8, 5, 4), inputs=(7, 1), outputs=(9,), **gradient),
    )
    step = Step(name="made", batch=4, ops=ops, tensors=tensors)
    masks = generated_masks(step, {"A": 0.5, "G": 0.5, "W": 0.5})
    assert set(masks.shapes) == {("cell", 0, name) for name in ("A#0", "A#1", "W#2", "W#3", "G")}
    whole = lambda op, side, rows, columns: matrix(viewer(step, op, "col2im", masks, side)(0, (0, rows), (0, columns)))  # noqa: E731
    assert np.array_equal(whole(ops[0], 0, 4, 6), whole(ops[2], 1, 4, 6))
    assert np.array_equal(whole(ops[1], 0, 4, 5), whole(ops[3], 1, 4, 5))
    assert np.array_equal(whole(ops[1], 1, 5, 8), masks.bits(("cell", 0, "W#3")).T)
    assert np.array_equal(whole(ops[2], 0, 8, 4), masks.bits(("cell", 0, "G")).T)
    assert masks.density(("cell", 0, "A")) == 0.5
    with pytest.raises(UnknownName, match="unknown mask 'cell/0/A'"):
        masks.bits(("cell", 0, "A"))


def test_a_weight_is_the_same_in_all_calls():
    ops = tuple(Op(body=MatMul(4, 5, 6), layer="fc", call=call, letters=("A", "W")) for call in range(2))
    masks = generated_masks(Step(name="made", batch=4, ops=ops, tensors=()), {"A": 0.5, "W": 0.5})
    assert np.array_equal(masks.bits(("fc", 0, "W")), masks.bits(("fc", 1, "W")))
    assert not np.array_equal(masks.bits(("fc", 0, "A")), masks.bits(("fc", 1, "A")))


def test_masks_of_another_step_raise(resnet):
    masks = generated_masks(resnet)
    masks.check(resnet)
    masks.check(resnet.rebatch(6))  # samples are repeated
    with pytest.raises(MaskError, match=r"at batch 2 do not fit step 'resnet18' at batch 3: layer 'conv1', A"):
        masks.check(resnet.rebatch(3))
    with pytest.raises(MaskError, match=r"generated for 'resnet18'.*layer 'net\.conv'"):
        masks.check(convolution())


def test_generated_samples_are_repeated_over_the_batch(resnet):
    step = resnet.rebatch(6)
    masks = generated_masks(step, samples=2)
    assert masks.shapes["conv1", 0, "A"] == (2, 3, 224, 224)
    assert masks.shapes["fc", 0, "A"] == (2, 512)
    assert masks.shapes["conv1", 0, "W"] == (64, 3, 7, 7)
    masks.check(step)
    with pytest.raises(BadInput, match="samples must divide the step's batch 6, got 4"):
        generated_masks(step, samples=4)


def test_sparsity_text_of_the_command_line_is_parsed(resnet):
    masks = parse("sparsity(A=0.6, G=.5, cluster=channel, seed=1)", resnet)
    same = generated_masks(resnet, {"A": 0.6, "G": 0.5}, cluster="channel", seed=1)
    assert masks.digest == same.digest
    assert parse("sparsity(W=0.9,samples=1)", resnet).shapes["conv1", 0, "G"] == (1, 64, 112, 112)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("sparsity", BadInput, "cannot read 'sparsity': write for example"),
        ("density(A=0.5)", BadInput, "cannot read"),
        ("sparsity()", BadInput, "says nothing of A, G or W"),
        ("sparsity(A)", BadInput, "'A' in .* has no value"),
        ("sparsity(B=0.5)", UnknownName, "unknown operand or option 'B'"),
        ("sparsity(A=0.5,cluter=row)", UnknownName, "did you mean 'cluster'"),
        ("sparsity(A=half)", BadInput, "A='half' in .* is not a share of zeros"),
        ("sparsity(A=60)", BadInput, "A is a share of zeros between 0 and 1, got 60"),
        ("sparsity(A=nan)", BadInput, "between 0 and 1"),
        ("sparsity(A=0.5,A=0.6)", BadInput, "A is given twice"),
        ("sparsity(A=0.5,cluster=rows)", UnknownName, "unknown cluster 'rows'.*did you mean 'row'"),
        ("sparsity(A=0.5,seed=1.5)", BadInput, "seed='1.5' in .* is not a whole number"),
        ("sparsity(A=0.5,seed=-1)", BadInput, "seed must be a whole number of at least 0"),
    ],
)
def test_unreadable_sparsity_text_raises_with_the_reason(text, error, message, resnet):
    with pytest.raises(error, match=message):
        parse(text, resnet)


def test_unknown_letters_and_masks_raise_with_their_name(resnet):
    with pytest.raises(UnknownName, match="unknown operand 'B' in generated masks"):
        generated_masks(resnet, {"B": 0.5})
    with pytest.raises(UnknownName, match=r"unknown mask 'convl/0/A' in masks generated for 'resnet18': did you mean"):
        generated_masks(resnet).bits(("convl", 0, "A"))


def test_a_run_accepts_generated_masks_like_recorded_ones():
    """Fewer zeros never make a machine that skips them faster; no layer is noted as unknown."""
    step = ty.zoo.load("lstm-1", batch=2)
    device = ty.Accelerator(array=ty.arrays.TensorDash(tiles=4), scratchpad="1 MiB", dram="100 GB/s", clock="500 MHz")
    masks = {share: generated_masks(step, {"A": share, "G": share}) for share in (0.0, 0.9)}
    results = {share: ty.run(step, on=device, masks=actual) for share, actual in masks.items()}
    assert results[0.9].cycles < results[0.0].cycles
    assert not any("no recorded mask" in note for result in results.values() for note in result.notes)
    assert unpacked(masks[0.0], next(iter(masks[0.0].shapes))).all()


def test_bits_are_those_of_numpys_generator():
    """A seed means the same bits tomorrow: one float32 an element, zero where it is under the share."""
    step = convolution()
    masks = generated_masks(step, {"A": 0.6, "W": 1.0}, seed=5)
    pattern = hashlib.sha256(b"5/net.conv/0/A").digest()
    drawn = np.random.default_rng(int.from_bytes(pattern[:16], "big")).random((4, 20, 6, 5), dtype=np.float32)
    assert np.array_equal(masks.bits(("net.conv", 0, "A")), drawn >= 0.6)
    assert masks.bits(("net.conv", 0, "G")).all()
    assert not masks.bits(("net.conv", 0, "W")).any()


def test_bits_are_drawn_once_for_equal_masks(monkeypatch):
    drawn, draw = [], GeneratedMasks._draw
    monkeypatch.setattr(GeneratedMasks, "_draw", lambda self, key: drawn.append(key) or draw(self, key))
    key = ("net.conv", 0, "A")
    first, again = (generated_masks(convolution(), {"A": 0.5}, seed=77) for _ in range(2))
    bits = first.bits(key)
    assert np.array_equal(again.bits(key), bits)
    assert drawn == [key]
    before = bits.copy()
    bits[:] = False  # a caller's own copy
    assert np.array_equal(first.bits(key), before)
    assert not np.array_equal(generated_masks(convolution(), {"A": 0.5}, seed=78).bits(key), before)
    assert drawn == [key, key]


def test_a_run_draws_every_mask_once_on_all_machines(monkeypatch):
    drawn, draw = [], GeneratedMasks._draw
    monkeypatch.setattr(GeneratedMasks, "_draw", lambda self, key: drawn.append(key) or draw(self, key))
    masks = generated_masks(convolution(), {"A": 0.5, "W": 0.3, "G": 0.4}, seed=123)
    for result in ty.compare(convolution(), on="sigma,tensordash,sigma(array.streaming=limited)", masks=masks):
        result.ranged()
    assert sorted(drawn) == sorted(masks.shapes)


def test_every_weight_of_a_layer_with_several_has_two_of_four():
    tensors = (
        TensorSpec((8, 16)), TensorSpec((16, 12), role=Role.PARAMETER), TensorSpec((8, 12)),
        TensorSpec((12, 16), role=Role.PARAMETER), TensorSpec((8, 16)),
    )  # fmt: skip
    ops = (
        Op(body=MatMul(8, 12, 16), layer="two", inputs=(0, 1), outputs=(2,), letters=("A", "W")),
        Op(body=MatMul(8, 16, 12), layer="two", inputs=(2, 3), outputs=(4,), letters=("A", "W")),
    )
    step = Step("two weights", 8, ops, tensors)
    masks = parse("sparsity(W=2:4)", step)
    for name, axis in (("W#1", 0), ("W#3", 0)):
        bits = masks.bits(("two", 0, name))
        groups = np.moveaxis(bits, axis, -1).reshape(-1, 4)
        assert set(groups.sum(1)) == {2}
    assert ty.run(step, "tensorcore", masks=masks).array_cycles < ty.run(step, "tensorcore").array_cycles
