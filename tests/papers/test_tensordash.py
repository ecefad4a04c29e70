"""TensorDash's experiments on small models, and the parts they are made of. The whole reproduction is in test_tensordash_whole."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import TensorDash
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.ir import Convolution, MaskView, MatMul, Op, Phase, Step
from trainyard.ir.step import operand_shape
from trainyard.machines.presets.tensordash import TENSORCORE, TENSORDASH
from trainyard.mapping.works import separate_products
from trainyard.masks.generated import GeneratedMasks, generated_masks
from trainyard.masks.views import matrix
from trainyard.papers import bench, ledger
from trainyard.papers.evidence import Search
from trainyard.papers.tensordash import chip, connectivity, context, energies, models, overheads, random_tensors, sweeps
from trainyard.papers.tensordash.models import MODELS, OPERATIONS, Fitted, Subject, laid, model, recorded
from trainyard.papers.tensordash.potential import effectual, potential, share_for, visits
from trainyard.papers.tensordash.printed import INPUTS, POTENTIALS, SHARES, printed
from trainyard.papers.tensordash.products import alone, cycles, masked_products, on_array, slowest, speedup, targeting
from trainyard.papers.tensordash.sweeps import PAPER, TOGETHER, WIDE, geometry

SMALL = ("NCF", "SNLI")


def layer(body: Convolution) -> Step:
    """One convolution with its three products."""
    letters = {"forward": ("A", "W"), "grad_input": ("G", "W"), "grad_weight": ("A", "G")}
    phases = {"forward": Phase.FORWARD, "grad_input": Phase.GRAD_INPUT, "grad_weight": Phase.GRAD_WEIGHT}
    ops = tuple(
        Op(body=replace(body, product=product), layer="conv", letters=letters[product], phase=phases[product])
        for product in letters
    )
    return Step(name="one", batch=body.batch, ops=ops, tensors=())


def test_every_claim_has_an_experiment() -> None:
    assert set(bench.experiments("tensordash")) == {claim.id for claim in ledger.claims() if claim.paper == "tensordash"}


def test_both_chips_differ_in_their_arrays_alone() -> None:
    assert replace(TENSORDASH, array=TENSORCORE.array) == TENSORCORE
    assert PAPER.baseline == TENSORCORE.array


def test_sweeps_keep_the_multipliers() -> None:
    assert {array.peak_macs_per_cycle for array in (*TOGETHER, WIDE)} == {256 * 4 * 4 * 4}
    assert geometry(rows=1).tiles == 1024
    assert len(replace(WIDE, options=sweeps.SEARCHED).scheduler.levels) == 4


# ---- masks


@pytest.mark.parametrize("name", [found.name for found in (*MODELS, models.GCN)])
def test_recorded_masks_fit_their_step(name: str) -> None:
    subject = recorded(name)
    assert isinstance(subject.masks, Fitted)
    assert {OPERATIONS[subject.step.ops[number].phase] for number in subject.products} == set(OPERATIONS.values())
    assert all(weight > 0 for weight in subject.weights.values())
    products = masked_products(subject)
    for product in (products[0], products[len(products) // 2], products[-1]):  # bits can be read as the product's operand
        for side, operand in zip("ab", product.parts[0], strict=True):
            if isinstance(operand, MaskView):
                assert 0 <= matrix(operand).sum() <= (product.op.M if side == "a" else product.op.N) * product.op.K


def test_recurrent_layers_do_not_count() -> None:
    layers = {recorded("SNLI").step.ops[number].layer for number in recorded("SNLI").products}
    assert layers == {"premise.projection", "hypothesis.projection", "out.0", "out.3", "out.6", "out.9"}


def test_ncf_leaves_the_first_input_gradient_out() -> None:
    for subject in (recorded("NCF"), printed("NCF")):
        counted = {(p.layer, p.operation) for p in masked_products(subject)}
        assert ("mlp.0", "W*G") not in counted
        assert {("mlp.0", "A*W"), ("mlp.0", "A*G"), ("mlp.1", "W*G")} <= counted


def test_masks_of_small_pictures_weigh_as_large_ones() -> None:
    subject = recorded("Dtctron2")
    assert subject.whole is not None
    macs = sum(subject.weights[number] * subject.step.ops[number].macs for number in subject.products)
    keys = {(op.layer, op.call, op.phase) for op in (subject.step.ops[number] for number in subject.products)}
    whole = sum(op.macs for op in subject.whole.ops if (op.layer, op.call, op.phase) in keys and op.is_product)
    assert macs / subject.step.batch == pytest.approx(whole / subject.whole.batch)


def test_tensors_are_laid_out_as_the_step_has_them() -> None:
    bits = np.random.default_rng(0).random((1, 6, 4)) < 0.5
    key = ("layer", 0, "A")
    assert (laid(bits, (1, 4, 6), key) == bits.transpose(0, 2, 1)).all()  # channels last
    assert (laid(bits.reshape(6, 4), (1, 4, 6), key) == bits.transpose(0, 2, 1)).all()
    assert (laid(bits, (6, 4), key) == bits[0]).all()  # rows of a sample
    assert (laid(bits.reshape(1, 3, 2, 4), (6, 4), key) == bits[0]).all()
    with pytest.raises(MaskError, match="is no"):
        laid(bits, (3, 8), key)


def test_pruned_weights_have_the_density_that_was_kept() -> None:
    masks = recorded("RsNt50_S").masks
    assert isinstance(masks, Fitted)
    assert masks.weights
    key = max(masks.weights, key=lambda key: math.prod(masks.shapes[key]))
    assert masks.bits(key).mean() == pytest.approx(masks.weights[key], rel=0.05)
    assert (masks.bits(key) == masks.bits(key)).all()
    assert masks.spec(key).shape == masks.bits(key).shape


def test_unknown_model() -> None:
    with pytest.raises(UnknownName, match="did you mean 'VGG16'"):
        model("VGG1")


# ---- potential


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3), inside=st.integers(1, 6), outside=st.integers(1, 6), size=st.integers(3, 8), kernel=st.integers(1, 3),
    padding=st.integers(0, 1), stride=st.integers(1, 2), seed=st.integers(0, 99),
)  # fmt: skip
def test_what_remains_is_counted_as_the_streams_count_it(
    batch: int, inside: int, outside: int, size: int, kernel: int, padding: int, stride: int, seed: int
) -> None:
    body = Convolution(
        batch=batch, in_channels=inside, out_channels=outside, size=(size, size + 1), kernel=(kernel, kernel),
        padding=(padding, padding), stride=(stride, stride),
    )  # fmt: skip
    step = layer(body)
    drawn = generated_masks(step, {"A": 0.5, "G": 0.4, "W": 0.7}, seed=seed)

    class Bits:
        """The same bits from a source that does not say their share."""

        digest, specs, spec, bits = drawn.digest, drawn.specs, drawn.spec, staticmethod(drawn.bits)

    subject = Subject("one", step, Bits(), "")
    for product in masked_products(subject):
        for operand, times in zip(product.parts[0], (product.op.N, product.op.M), strict=True):
            assert isinstance(operand, MaskView)
            assert effectual(operand, times) == times * matrix(operand).sum()


def test_visits_of_a_stride_are_those_of_its_windows() -> None:
    body = Convolution(batch=1, in_channels=1, out_channels=1, size=(5, 5), kernel=(3, 3), padding=(1, 1), stride=(2, 2))
    for place, positions in (("A", 25), ("G", 9)):
        assert visits(body, place).size == positions
    assert visits(body, "A").sum() == visits(body, "G").sum()  # each pair of positions meets once forward and once backward


def test_a_generated_share_stands_for_its_bits() -> None:
    subject = printed("SNLI")
    for product in masked_products(subject):
        for operand, times in zip(product.parts[0], (product.op.N, product.op.M), strict=True):
            if isinstance(operand, MaskView):
                assert effectual(operand, times) == pytest.approx(times * matrix(operand).sum(), rel=0.1, abs=times * 40)


@given(st.floats(1.2, 6.0))
@settings(max_examples=10, deadline=None)
def test_a_share_of_zeros_makes_the_potential_that_was_asked_for(wanted: float) -> None:
    body = Convolution(batch=2, in_channels=8, out_channels=8, size=(6, 6), kernel=(3, 3), padding=(1, 1))
    step = layer(body)
    full = Subject("one", step, generated_masks(step, {}), "")
    share = share_for(full, wanted, [])
    made = Subject("one", step, generated_masks(step, {"A": share, "G": share}), "")
    assert potential(made) == pytest.approx(max(wanted, potential(full)))


def test_potentials_that_are_printed_are_met_by_their_masks() -> None:
    for name in ("BERT", "Dtctron2", "SQZNet", "img2txt"):
        assert potential(printed(name)) == pytest.approx(POTENTIALS[name])
    assert set(POTENTIALS) == INPUTS
    assert fmean([*POTENTIALS.values(), 5.6, 1.7]) == pytest.approx(2.6)  # Fig. 1: what is derived keeps its mean


def test_backward_passes_alone_gain_where_the_paper_says_so() -> None:
    full = layer(Convolution(batch=2, in_channels=8, out_channels=8, size=(6, 6), kernel=(1, 1)))
    dense = Subject("one", full, generated_masks(full, {}), "")
    share = share_for(dense, 2.0, [("*", "A")])
    assert share == pytest.approx(0.75)  # 3 / (1 + 2 x 0.25)
    with pytest.raises(BadInput, match="no share of zeros"):
        share_for(dense, 3.5, [("*", "A")])  # A*W remains whole
    for name in ("BERT", "Dtctron2"):
        masks = printed(name).masks
        assert isinstance(masks, GeneratedMasks)
        assert {masks.density(key) for key in masks.specs if key[2] == "A"} == {1.0}
        assert potential(printed(name), "A*W") == pytest.approx(1.0, abs=0.13)  # padding alone
    assert 0.73 < 1 - masks.density(("rpn.head.conv", 0, "G")) < 0.94  # Sec. IV-A


def test_printed_shares_are_in_the_masks() -> None:
    masks = printed("SNLI").masks
    assert isinstance(masks, GeneratedMasks)
    for layer_name, letter, share in (
        ("premise.projection", "A", 0.63),
        ("out.0", "A", 0.0),
        ("out.3", "A", 0.94),
        ("out.6", "G", 0.95),
    ):
        assert 1 - masks.density((layer_name, 0, letter)) == pytest.approx(share)
    assert set(SHARES) | INPUTS == {found.name for found in MODELS}


# ---- products


@pytest.mark.parametrize("name", SMALL)
def test_never_slower_and_never_faster_than_its_depth(name: str) -> None:
    for sync in ("lockstep", "output", "block"):
        array = replace(PAPER, sync=sync)
        for before, after in zip(on_array(recorded(name), array.baseline), on_array(recorded(name), array), strict=True):
            assert before.cycles >= after.cycles >= before.cycles / PAPER.depth - 1, (sync, after.layer, after.operation)
        assert slowest(recorded(name), array)[0] >= 1


@pytest.mark.parametrize("name", SMALL)
def test_side_by_side_is_the_same_as_alone(name: str) -> None:
    for array in (PAPER, geometry(rows=8), WIDE):
        assert on_array(recorded(name), array) == alone(recorded(name), array)


def test_tiles_of_the_chip_change_little() -> None:
    for name in SMALL:
        assert chip.gain(printed(name), waiting=False) == pytest.approx(speedup(printed(name), PAPER), rel=0.1)


# ---- the whole chip


def test_a_batch_of_the_paper_moves_little_more_than_each_tensor_once() -> None:
    """VGG16, 64 samples: each operand of a product once, G once for both of its own, compressed by its zeros, and each result once,
    as it is."""
    subject = printed("VGG16")
    many = chip.at_batch(subject)
    compulsory = 0.0
    for op in (many.step.ops[number] for number in many.products):
        for side, letter in enumerate(op.letters):
            if letter == "G" and op.phase is Phase.GRAD_INPUT:
                continue
            share = many.masks.density((op.layer, op.call, letter)) if letter != "W" else 1.0  # type: ignore[attr-defined]
            values = math.prod(operand_shape(many.step, op, side))
            compulsory += values * min(2.0, 2.0 * share + 1 / 8)  # FP16, and a bit that says whether it is zero
        compulsory += 2.0 * math.prod(many.step.tensors[many.step.base(op.outputs[0])].shape)
    ratio = 64 * chip.moved_bytes(subject) / compulsory
    assert 0.95 <= ratio <= 1.2  # a few results are compressed as well
    few = replace(many, step=subject.step)  # one sample as if it were the batch: weights are read for it alone
    device = chip.device(PAPER.baseline)
    costs = [device.cost(few.step, work, few.masks) for work in chip.counted_works(few, device)]
    assert sum(sum(cost.bytes.values()) for cost in costs) > 5 * chip.moved_bytes(subject)


def test_wider_channels_wait_less() -> None:
    assert [chip.bytes_per_s(bits) for bits in (16, 64)] == [TENSORCORE.dram_bytes_per_s, 102.4e9]
    for name in ("SQZNet", "BERT"):
        narrow, wide = (chip.gain(printed(name), bits) for bits in (16, 64))
        assert 1.0 <= narrow < wide < chip.gain(printed(name), 64, waiting=False) * 1.01


@pytest.mark.parametrize(("name", "most"), [("SQZNet", 0.501), ("VGG16", 0.6)])
def test_the_chip_of_the_paper_reads_gradients_once(name: str, most: float) -> None:
    """W*G and A*G of a layer read G once in turn. Of VGG16, layers whose weights and sums have no room beside it stay apart."""
    many = chip.at_batch(printed(name))
    for array in (PAPER.baseline, PAPER):
        device = chip.device(array)
        assert device.order == TENSORCORE.order == TENSORDASH.order == "cost"
        apart = replace(device, order="sequential")
        reads, twice = 0, 0
        for work in chip.counted_works(many, device):
            if work.grouping != "gradient_pair":
                continue
            together = device.cost(many.step, work, many.masks)
            alone = [apart.cost(many.step, part, many.masks).bytes for part in separate_products(many.step, work)]
            if together.bytes["dY", "read"] < alone[0]["dY", "read"] + alone[1]["dY", "read"]:
                assert together.bytes["dY", "read"] == alone[0]["dY", "read"]
            assert sum(together.bytes.values()) <= 1.01 * sum(sum(moved.values()) for moved in alone)
            reads, twice = reads + together.bytes["dY", "read"], twice + sum(moved["dY", "read"] for moved in alone)
        assert 0.5 <= reads / twice <= most


def test_a_batch_keeps_its_shares_of_zeros() -> None:
    for subject in (printed("SQZNet"), recorded("SQZNet"), recorded("SNLI")):
        many = chip.at_batch(subject)
        assert many.step.batch == 64
        assert len(many.products) == len(subject.products)
        for key, share in many.masks.specs.items():  # type: ignore[attr-defined]
            assert share == pytest.approx(subject.masks.density(key), abs=0.005)  # type: ignore[attr-defined]


def test_forward_looks_at_activations_alone() -> None:
    assert targeting(PAPER, "A*W") == replace(PAPER, scheduled="a")
    assert targeting(PAPER, "A*G") is PAPER
    step = layer(Convolution(batch=1, in_channels=8, out_channels=8, size=(8, 8), kernel=(3, 3), padding=(1, 1)))
    pruned = Subject("one", step, generated_masks(step, {"W": 0.9}), "")
    padding_only = Subject("one", step, generated_masks(step, {}), "")
    assert speedup(pruned, PAPER, "A*W") == speedup(padding_only, PAPER, "A*W")
    assert speedup(pruned, PAPER, "W*G") > 1.5 * speedup(padding_only, PAPER, "W*G")


def test_groups_of_a_convolution_are_added_up() -> None:
    body = Convolution(batch=1, in_channels=8, out_channels=8, size=(8, 8), kernel=(3, 3), padding=(1, 1), groups=2)
    step = layer(body)
    subject = Subject("one", step, generated_masks(step, {"A": 0.5, "G": 0.5}), "")
    for product in masked_products(subject):
        assert len(product.parts) == 2
        assert product.macs == 64 * 8 * 4 * 9
    assert 1 < speedup(subject, PAPER) < 4


# ---- energies and areas


def test_energy_by_the_array_and_by_the_chip_agree() -> None:
    """The core's energy is counted on whole products, the memories' on the tiles of the dense chip: on the chip itself tiles are
    chosen with the zeros in sight, and move a little more or less."""
    subject = printed("SQZNet")
    for array in (PAPER, PAPER.baseline):
        tiled = energies.total(chip.on_chip(subject, array), chip.device(array))
        ours = energies.joules(subject, array)
        assert ours["core"] == pytest.approx(tiled["core"] / 64, rel=0.1)
        near = 0.05 if array is PAPER else 1e-6
        assert ours["DRAM"] == pytest.approx(tiled["DRAM"] / 64, rel=near)
        assert ours["SRAM"] == pytest.approx(tiled["SRAM"] / 64, rel=near)


def test_core_energy_follows_from_cycles_and_the_rows() -> None:
    subject = energies.at_once(recorded("SNLI"))
    busy = cycles(alone(subject, PAPER.baseline)) / PAPER_CLOCK
    watts = sum(overheads.powers(PAPER.baseline).values()) * 1e-3
    assert energies.joules(recorded("SNLI"), PAPER.baseline)["core"] == pytest.approx(busy * watts / subject.step.batch)


PAPER_CLOCK = 500e6


def test_samples_are_repeated_for_their_weights_sake() -> None:
    subject = recorded("SQZNet")
    assert energies.at_once(subject).step.batch == energies.AT_ONCE
    assert energies.at_once(subject).masks is subject.masks
    assert energies.at_once(recorded("NCF")).step.batch == recorded("NCF").step.batch


def test_no_component_is_forgotten() -> None:
    with pytest.raises(KeyError):
        energies.by_part({"crossbar": 1.0})


def test_rows_of_table_iv() -> None:
    assert sum(overheads.powers(PAPER).values()) == pytest.approx(25_902.5)
    assert sum(overheads.powers(PAPER.baseline).values()) == pytest.approx(23_792.4)
    assert overheads.overhead(PAPER, overheads.areas) == pytest.approx(79.02 / 69.11)
    twice = overheads.overhead(replace(PAPER, sides="two"), overheads.areas)
    assert twice > 1.2  # a scheduler and both buffers for each element


def test_the_area_of_16_lanes_is_open_after_a_search_over_readings() -> None:
    measured = overheads.wide_area()
    claim = next(claim for claim in ledger.claims() if claim.id == overheads.WIDE_CORE)
    row = ledger.judge(claim, measured)
    assert row.verdict == "open"
    assert isinstance(row.evidence, Search)
    assert row.evidence.readings == len({str(reading) for reading in overheads.WIDE_READINGS}) == 36
    plain = overheads.WideReading(4, 4, without_current_step=False, schedulers_by_depth=False).percent
    assert measured.value == plain[overheads.WIDE_CORE]
    assert plain[overheads.WIDE_CHIP] == pytest.approx(100 * (overheads.overhead(WIDE, overheads.areas, chip=True) - 1))
    assert 10 < row.evidence.numbers[overheads.WIDE_CORE] < plain[overheads.WIDE_CORE]  # type: ignore[operator]


# ---- random tensors, patterns, context


def test_random_tensors_follow_their_sparsity() -> None:
    found = [speedup(random_tensors.tensors(level, 0), PAPER) for level in (10.0, 50.0, 90.0)]
    assert found == sorted(found)
    assert potential(random_tensors.tensors(50.0, 0)) > found[1]
    assert {product.layer for product in masked_products(random_tensors.tensors(50.0, 0))} == {random_tensors.LAYER}


def test_steps_of_the_layer_of_fig_15() -> None:
    steps = {product.operation: product.op.K / 4 for product in masked_products(random_tensors.tensors(50.0, 0))}
    assert steps == {"A*W": 36, "W*G": 144, "A*G": 729}
    third = {
        product.operation: product.op.K / 4 for product in masked_products(random_tensors.tensors(50.0, 0, random_tensors.THIRD))
    }
    assert third["A*W"] == 4


def test_the_paper_follows_its_own_advice() -> None:
    found = connectivity.family()
    assert len(found) == len(set(found)) > 100
    assert all(len(options) == 8 and options[0] == (0, 0) for options in found)


def test_context_stands_beside_the_paper() -> None:
    rows = {
        claim.id: ledger.judge(claim, context.EXPERIMENTS[claim.id]())
        for claim in ledger.claims()
        if claim.id in context.EXPERIMENTS
    }
    assert {row.verdict for row in rows.values()} == {"context"}
    for name in ("area.rows", "power.rows", "area.sram", "area.scratchpads", "scratchpads", "dram"):
        assert rows[f"tensordash.{name}"].ratio == pytest.approx(1.0), name
    assert rows["tensordash.peak"].ours == pytest.approx(16.384)
    assert rows["tensordash.pruning_target"].ours == pytest.approx(90, abs=2)


def test_matrix_products_without_masks_stay_dense() -> None:
    op = Op(body=MatMul(8, 8, 8), layer="fc", letters=("A", "W"), phase=Phase.FORWARD)
    step = Step(name="one", batch=8, ops=(op,), tensors=())
    subject = Subject("one", step, generated_masks(step, {}), "")
    assert speedup(subject, TensorDash()) == 1.0
    assert potential(subject) == 1.0
