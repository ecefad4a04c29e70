"""An array that looks at zeros gets each tile's own view of the masks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import trainyard as ty
from oracles.lowering import matrices
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.masked_tiles import SUMS_READ, add_events, guides, viewer
from trainyard.devices.accelerator.structured import tile_cost
from trainyard.errors import MaskError, UnknownName
from trainyard.ir import DENSE, ArrayCost, Convolution, MaskView, MatMul, Op, Phase, Role, Step, TensorSpec, one_after_another
from trainyard.ir.protocols import uses_operand_values
from trainyard.mapping.tiling import Tiling
from trainyard.mapping.walk import steps
from trainyard.masks.densities import Densities
from trainyard.masks.views import matrix


@dataclass(frozen=True)
class Pairs:
    """One cycle for each pair of non-zeros (and one for an empty tile): the sum over tiles is a count that numpy can check."""

    peak_macs_per_cycle: int = 1

    def granule(self):
        return (2, 2, 2)

    def cost(self, op, *, a=DENSE, b=DENSE):
        left = matrix(a) if isinstance(a, MaskView) else np.ones((op.M, op.K), bool)
        right = matrix(b) if isinstance(b, MaskView) else np.ones((op.K, op.N), bool)
        assert left.shape == (op.M, op.K)
        assert right.shape == (op.K, op.N)
        pairs = int((left.astype(int) @ right.astype(int)).sum()) * op.count
        return ArrayCost(cycles=max(1, pairs), events={"mac": float(pairs)})

    def concurrent(self, products):
        return one_after_another(self, products)


@dataclass(frozen=True)
class Bits:
    tensors: dict[str, np.ndarray]
    digest: str = "bits"

    def bits(self, key):
        assert key[:2] == ("layer", 0)
        return self.tensors[key[2]]


DEVICE = Accelerator(array=Pairs(), scratchpad_bytes=2000, dram="1 TB/s", dram_latency=0, tiling=(3, 2, 4), fusion="none")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("form", ["col2im", "dilated"])
@pytest.mark.parametrize("product", ["forward", "grad_input", "grad_weight"])
def test_tiles_of_a_convolution_see_exactly_their_zeros(product, form, groups):
    body = Convolution(
        batch=2,
        in_channels=4,
        out_channels=6,
        size=(5, 4),
        kernel=(3, 2),
        stride=(2, 1),
        padding=(1, 0),
        groups=groups,
        product=product,
    )
    random = np.random.default_rng(groups)
    masks = Bits(
        {
            "A": random.random((2, 4, 5, 4)) < 0.5,
            "W": random.random((6, 4 // groups, 3, 2)) < 0.5,
            "G": random.random((2, 6, *body.out_size)) < 0.5,
        }
    )
    first, second = {"forward": "AW", "grad_input": "GW", "grad_weight": "AG"}[product]
    a, b = matrices(body, masks.tensors[first].astype(int), masks.tensors[second].astype(int), form)
    step = Step(name="made", batch=2, ops=(Op(body=body, layer="layer"),), tensors=())
    device = replace(DEVICE, grad_input=form)
    cost = device.cost(step, device.works(step)[0], masks)
    assert cost.events["mac"] == np.matmul(a, b).sum()
    assert cost.events["mac"] < device.cost(step, device.works(step)[0]).events["mac"]


def of_one_layer(body, shapes, letters, phase=Phase.FORWARD):
    tensors = (*(TensorSpec(shape) for shape in shapes), TensorSpec((1,)))
    op = Op(body=body, layer="layer", inputs=(0, 1), outputs=(2,), letters=letters, phase=phase)
    return Step(name="made", batch=2, ops=(op,), tensors=tensors)


def macs(step, masks, device=DEVICE):
    (work,) = device.works(step)
    return device.cost(step, work, masks).events["mac"]


def test_a_weight_gradient_finds_its_operands_where_x_and_dy_are_of_one_size():
    """As captured: (dY, X), of one shape; the product is im2col(X) turned, times dY."""
    body = Convolution(batch=2, in_channels=3, out_channels=3, size=(4, 4), kernel=(3, 3), padding=(1, 1), product="grad_weight")
    random = np.random.default_rng(1)
    x, gradient = random.random((2, 3, 4, 4)) < 0.3, random.random((2, 3, 4, 4)) < 0.8
    a, b = matrices(body, x.astype(int), gradient.astype(int))
    step = of_one_layer(body, [x.shape, gradient.shape], ("G", "A"), Phase.GRAD_WEIGHT)
    assert macs(step, Bits({"A": x, "G": gradient})) == np.matmul(a, b).sum()
    (work,) = DEVICE.works(step)
    assert {tensor for tensor, direction in DEVICE.cost(step, work).bytes if direction == "read"} == {"X", "dY"}
    labelled = of_one_layer(body, [(2, 3, 4, 4)] * 2, ("A", "G"), Phase.GRAD_WEIGHT)
    assert DEVICE.cost(step, work).bytes == DEVICE.cost(labelled, work).bytes


@pytest.mark.parametrize("form", ["col2im", "dilated"])
def test_a_transposed_convolution_has_its_input_where_a_gradient_stands(form):
    """Its layer's masks are A (small), W, G (large); the geometry is the convolution's from large to small."""
    geometry = Convolution(batch=2, in_channels=2, out_channels=3, size=(6, 6), kernel=(2, 2), stride=(2, 2))
    random = np.random.default_rng(2)
    bits = {
        "A": random.random((2, 3, 3, 3)) < 0.4,
        "W": random.random((3, 2, 2, 2)) < 0.6,
        "G": random.random((2, 2, 6, 6)) < 0.5,
    }
    numbers = {letter: tensor.astype(int) for letter, tensor in bits.items()}
    device = replace(DEVICE, grad_input=form)
    for product, letters, phase in (
        ("grad_input", ("A", "W"), Phase.FORWARD),
        ("forward", ("G", "W"), Phase.GRAD_INPUT),
        ("grad_weight", ("A", "G"), Phase.GRAD_WEIGHT),
    ):
        body = geometry.as_product(product)
        order = letters if product != "grad_weight" else letters[::-1]  # captured as (geometry's dY, geometry's X)
        a, b = matrices(body, *(numbers[letter] for letter in order), form)
        step = of_one_layer(body, [bits[letter].shape for letter in letters], letters, phase)
        assert macs(step, Bits(bits), device) == np.matmul(a, b).sum(), product


def test_a_linear_layer_behind_a_flattened_image():
    random = np.random.default_rng(3)
    a, w, g = random.random((4, 12)) < 0.5, random.random((5, 12)) < 0.5, random.random((4, 5)) < 0.5
    tensors = (
        TensorSpec((4, 3, 2, 2)), TensorSpec((4, 12), view_of=0), TensorSpec((5, 12), role=Role.PARAMETER),
        TensorSpec((12, 5), view_of=2), TensorSpec((4, 5)), TensorSpec((5, 4), view_of=4), TensorSpec((5, 12)),
    )  # fmt: skip
    ops = (
        Op(body=MatMul(4, 5, 12), layer="layer", inputs=(1, 3), outputs=(4,), letters=("A", "W")),
        Op(body=MatMul(5, 12, 4), layer="layer", inputs=(5, 1), outputs=(6,), letters=("G", "A"), phase=Phase.GRAD_WEIGHT),
    )
    step = Step(name="made", batch=4, ops=ops, tensors=tensors)
    masks = Bits({"A": a, "W": w, "G": g})
    expected = [(a.astype(int) @ w.T.astype(int)).sum(), (g.T.astype(int) @ a.astype(int)).sum()]
    assert [DEVICE.cost(step, work, masks).events["mac"] for work in DEVICE.works(step)] == expected


@pytest.mark.parametrize("shared", [False, True])
def test_each_of_several_products_sees_its_own_zeros(shared):
    """A batched product of a layer: every item with a weight of its own, or all with one."""
    random = np.random.default_rng(4)
    a, w = random.random((3, 4, 6)) < 0.5, random.random((6, 5) if shared else (3, 6, 5)) < 0.5
    step = of_one_layer(MatMul(4, 5, 6, count=3), [a.shape, w.shape], ("A", "W"))
    assert macs(step, Bits({"A": a, "W": w})) == np.matmul(a.astype(int), w.astype(int)).sum()


def test_fewer_recorded_samples_stand_for_the_whole_batch():
    random = np.random.default_rng(5)
    body = Convolution(batch=4, in_channels=2, out_channels=3, size=(5, 5), kernel=(3, 3))
    x, w = random.random((2, 2, 5, 5)) < 0.5, random.random((3, 2, 3, 3)) < 0.5
    step = of_one_layer(body, [(4, 2, 5, 5), w.shape], ("A", "W"))
    assert macs(step, Bits({"A": x, "W": w})) == macs(step, Bits({"A": np.concatenate([x, x]), "W": w}))
    rows, weight = random.random((2, 3, 6)) < 0.5, random.random((5, 6)) < 0.5
    linear = of_one_layer(MatMul(12, 5, 6), [(4, 3, 6), (5, 6)], ("A", "W"))
    assert macs(linear, Bits({"A": rows, "W": weight})) == 2 * (rows.reshape(-1, 6).astype(int) @ weight.T.astype(int)).sum()
    with pytest.raises(MaskError, match="has 9 rows, the step 12"):
        macs(linear, Bits({"A": random.random((3, 3, 6)) < 0.5, "W": weight}))


def test_a_tile_gathers_no_more_than_itself():
    """The unfolded matrix of this image would take 3 GB; a tile of it comes from a tensor that is unpacked once."""
    body = Convolution(batch=8, in_channels=64, out_channels=64, size=(112, 112), kernel=(7, 7), padding=(3, 3))

    class Counted(Bits):
        asked = 0

        def bits(self, key):
            type(self).asked += 1
            return self.tensors[key[2]]

    source = Counted({"A": np.ones((8, 64, 112, 112), bool)})
    views = [MaskView(source, ("layer", 0, "A"), body, rows=(112 * i, 112 * i + 8), columns=(0, 49)) for i in range(100)]
    assert {matrix(view).shape for view in views} == {(8, 49)}
    assert matrix(views[0]).sum() == sum(4 * min(7, 4 + i) for i in range(8))  # the upper left corner: 3 of 7 rows are padding
    assert source.asked == 1


@pytest.mark.parametrize(("rows", "wide", "deep"), [(6, 5, 7), (6, 6, 6)])
def test_tiles_of_a_linear_layer_see_exactly_their_zeros(rows, wide, deep):
    """nn.Linear keeps W as (out, in), so the forward product reads it turned, and dW comes from A turned."""
    random = np.random.default_rng(rows)
    a, w, g = random.random((rows, deep)) < 0.5, random.random((wide, deep)) < 0.5, random.random((rows, wide)) < 0.5
    masks = Bits({"A": a, "W": w, "G": g})
    tensors = (
        TensorSpec((rows, deep)), TensorSpec((wide, deep), role=Role.PARAMETER), TensorSpec((deep, wide), view_of=1),
        TensorSpec((rows, wide)), TensorSpec((rows, wide), role=Role.GRADIENT),
        TensorSpec((rows, deep), role=Role.GRADIENT), TensorSpec((wide, deep), role=Role.PARAMETER_GRADIENT),
    )  # fmt: skip
    backward = {"layer": "layer"}
    ops = (
        Op(body=MatMul(rows, wide, deep), layer="layer", inputs=(0, 2), outputs=(3,), letters=("A", "W")),
        Op(body=MatMul(rows, deep, wide), phase=Phase.GRAD_INPUT, inputs=(4, 1), outputs=(5,), letters=("G", "W"), **backward),
        Op(body=MatMul(wide, deep, rows), phase=Phase.GRAD_WEIGHT, inputs=(4, 0), outputs=(6,), letters=("G", "A"), **backward),
    )
    step = Step(name="made", batch=rows, ops=ops, tensors=tensors)
    a, w, g = a.astype(int), w.astype(int), g.astype(int)
    expected = [(a @ w.T).sum(), (g @ w).sum(), (g.T @ a).sum()]
    assert [DEVICE.cost(step, work, masks).events["mac"] for work in DEVICE.works(step)] == expected


def test_without_letters_or_masks_everything_is_dense():
    step = Step(name="made", batch=1, ops=(Op(body=MatMul(4, 4, 4, 2), layer="layer"),), tensors=())
    work = DEVICE.works(step)[0]
    assert DEVICE.cost(step, work, Bits({})).events["mac"] == DEVICE.cost(step, work).events["mac"] == 128


def test_masked_tiles_cost_at_most_dense_ones():
    body = MatMul(8, 8, 8)
    masks = Bits({"A": np.eye(8, dtype=bool), "W": np.ones((8, 8), bool)})
    step = Step(name="made", batch=1, ops=(Op(body=body, layer="layer", letters=("A", "W")),), tensors=())
    searched = replace(DEVICE, tiling="search", scratchpad_bytes=500)
    work = searched.works(step)[0]
    assert searched.cost(step, work, masks).cycles <= searched.cost(step, work).cycles


def test_layers_without_a_mask_count_as_dense():
    @dataclass(frozen=True)
    class Partial(Bits):
        def bits(self, key):
            if key[2] not in self.tensors:
                raise UnknownName("mask", key[2], self.tensors)
            return self.tensors[key[2]]

    a = np.random.default_rng(6).random((4, 6)) < 0.5
    step = of_one_layer(MatMul(4, 5, 6), [(4, 6), (5, 6)], ("A", "W"))
    assert macs(step, Partial({"A": a})) == a.sum() * 5
    assert macs(step, Partial({})) == step.macs


def test_a_run_says_which_layers_have_no_mask():
    @dataclass(frozen=True)
    class Recording(Bits):
        specs: tuple = (("layer", 0, "A"), ("layer", 0, "W"))

    w = np.ones((5, 6), bool)
    step = of_one_layer(MatMul(4, 5, 6), [(4, 6), (5, 6)], ("A", "W"))
    assert ty.run(step, on=DEVICE, masks=Recording({"A": np.eye(4, 6, dtype=bool), "W": w})).notes == ()
    (note,) = ty.run(step, on=DEVICE, masks=Recording({"A": np.eye(4, 6, dtype=bool), "W": w}, specs=(("layer", 0, "W"),))).notes
    assert note == "1 of 1 layers have no recorded mask and count as dense: layer"


def test_an_array_says_whether_it_looks_at_operands():
    @dataclass(frozen=True)
    class Told(Pairs):
        operand_aware: bool = True
        folds: tuple = ()

    assert uses_operand_values(Pairs())  # no closed form
    assert uses_operand_values(Told())
    assert not uses_operand_values(Told(operand_aware=False))
    assert not uses_operand_values(ty.arrays.Systolic(rows=4, columns=4))
    assert uses_operand_values(ty.arrays.TensorDash())


def linear(a, w, shape):
    return of_one_layer(shape, [a.shape, w.shape], ("A", "W")), Bits({"A": a, "W": w})


def test_tiles_that_differ_in_n_alone_share_their_view():
    """What was scheduled once for operand a serves all blocks of n."""
    random = np.random.default_rng(7)
    step, masks = linear(random.random((8, 6)) < 0.5, random.random((5, 6)) < 0.5, MatMul(8, 5, 6))
    views = [viewer(step, step.ops[0], "col2im", masks, side) for side in (0, 1)]
    tiles = list(steps(MatMul(8, 5, 6), Tiling(m=4, n=1, k=3)))
    assert len(tiles) == 20
    left = [views[0](tile.product, tile.m, tile.k) for tile in tiles]
    assert len({id(view) for view in left}) == len(set(left)) == 4
    assert len({views[1](tile.product, tile.k, tile.n) for tile in tiles}) == 10
    again = viewer(step, step.ops[0], "col2im", masks, 0)
    assert {again(tile.product, tile.m, tile.k) for tile in tiles} == set(left)


def test_errors_of_tiles_that_share_an_operand_add_up():
    @dataclass(frozen=True)
    class Sampled(Pairs):
        def cost(self, op, *, a=DENSE, b=DENSE):
            return ArrayCost(cycles=10, uncertainty=1.0)

    random = np.random.default_rng(8)
    step, masks = linear(random.random((8, 6)) < 0.5, random.random((6, 6)) < 0.5, MatMul(8, 6, 6))
    costs = tile_cost(Sampled(), step, step.ops[0], "col2im", masks, {})
    assert costs.uncertainty == 0.0
    assert sum(costs(tile) for tile in steps(MatMul(8, 6, 6), Tiling(m=4, n=1, k=6))) == 120
    assert costs.uncertainty == pytest.approx(np.sqrt(2 * 6**2))  # two views of a, six tiles each


def test_missing_masks_are_looked_up_in_the_list_of_those_that_there_are():
    @dataclass(frozen=True)
    class Listed(Bits):
        specs: tuple = (("layer", 0, "W"),)

        def bits(self, key):
            assert key == ("layer", 1, "W"), "asked for a mask that is not listed"
            return self.tensors["W"]

    step = of_one_layer(MatMul(4, 5, 6), [(4, 6), (5, 6)], ("A", "W"))
    op = replace(step.ops[0], call=1)
    masks = Listed({"W": np.ones((5, 6), bool)})
    assert viewer(step, op, "col2im", masks, 0)(0, (0, 4), (0, 6)) is DENSE
    assert matrix(viewer(step, op, "col2im", masks, 1)(0, (0, 6), (0, 5))).all()


@pytest.mark.parametrize(
    "array", [ty.arrays.TensorCore(tiles=2), ty.arrays.TensorDash(tiles=2), ty.arrays.Systolic(rows=4, columns=4)]
)
@pytest.mark.parametrize("tiling", [(64, 64, 64), (7, 5, 8), (16, 5, 12)])
def test_what_the_array_did_is_the_same_with_masks_that_have_no_zero(array, tiling):
    """Both ways add up the tiles; each tile behind the first along K reads the sums that it goes on with."""
    op = Op(body=MatMul(16, 12, 24), layer="layer", letters=("A", "W"), phase=Phase.FORWARD)
    step = Step(name="one", batch=16, ops=(op,), tensors=())
    masks = Bits({"A": np.ones((16, 24), bool), "W": np.ones((12, 24), bool)})
    device = Accelerator(array=array, scratchpad="64 KiB", dram="1 TB/s", tiling=tiling, fusion="none")
    (work,) = device.works(step)
    plain, masked = device.cost(step, work), replace(device, array=Aware(array)).cost(step, work, masks)
    assert plain.events == masked.events
    m, n, k = (min(size, extent) for size, extent in zip(tiling, (16, 12, 24), strict=True))
    tiles = [tile.op for tile in steps(op.body, Tiling(m=m, n=n, k=k, order="mnk"))]
    again = (-(-24 // k) - 1) * 16 * 12
    counted = [array.cost(tile).events for tile in tiles]
    reads = sum(events["scratchpad_read_a"] + events["scratchpad_read_b"] + events["scratchpad_read_out"] for events in counted)
    assert plain.events["scratchpad_read"] - 4 * 16 * 12 == 4 * (reads + again)  # the result goes on to DRAM
    if not isinstance(array, ty.arrays.Systolic):
        assert plain.compute_cycles == masked.compute_cycles
        assert plain.events["core_slot"] == plain.compute_cycles * array.peak_macs_per_cycle


@dataclass(frozen=True)
class Aware:
    """Any array, shown every tile."""

    array: ty.ir.Array
    operand_aware = True

    def __getattr__(self, name):
        return getattr(self.array, name)

    def cost(self, op, *, a=DENSE, b=DENSE):
        return self.array.cost(op, a=a, b=b)

    def granule(self):
        return self.array.granule()

    def concurrent(self, products):
        return one_after_another(self, products)


def test_sums_that_an_earlier_tile_has_begun_are_read_once_for_each_element_of_each_tile():
    events = {}
    for begun in (False, True):
        add_events(events, {"mac": 24.0, SUMS_READ: 1.0}, MatMul(2, 3, 4, 5), begun=begun, times=7)
    assert events == {"mac": 2 * 7 * 24.0, SUMS_READ: 2 * 7 * 1.0 + 2 * 3 * 5 * 7}
    add_events(events, {"mac": 1.0}, MatMul(2, 3, 4), begun=True)  # an array that counts no such reads has none
    assert events["mac"] == 2 * 7 * 24.0 + 1
    assert events[SUMS_READ] == 14 + 210


def test_guides_are_made_from_the_shares_of_both_operands_in_their_order():
    class Guided:
        def guided(self, a_nonzero, b_nonzero):
            return (a_nonzero, b_nonzero)

    op = Op(body=MatMul(4, 5, 6), layer="fc", letters=("A", "W"))
    step = Step(name="one", batch=4, ops=(op,), tensors=())
    masks = Densities("some", {("fc", 0, "A"): 0.5, ("fc", 0, "W"): 0.25})
    assert guides(Guided(), step, op, masks) == (0.5, 0.25)
    assert guides(object(), step, op, masks) == ()
