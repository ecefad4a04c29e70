"""Rules of sharing a step that no network of the zoo depends on, each on a step of a few ops."""

from __future__ import annotations

from itertools import product

import pytest

from trainyard.ir import Collective, Copy, ElementWise, MatMul, Op, Phase, Reduction, Role, Step, TensorSpec, Update
from trainyard.ir.ops import dimensions
from trainyard.mapping.parallel import transform as parallel
from trainyard.mapping.parallel.data import reduce_gradients

F, X, W, U = Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT, Phase.UPDATE
BATCH, WIDE, DEVICES = 8, 12, 4


class Making:
    """A step, op by op."""

    def __init__(self, batch=BATCH):
        self.batch, self.tensors, self.ops = batch, [], []

    def tensor(self, *shape, role=Role.ACTIVATION, view_of=None, dtype="fp32"):
        slope = tuple(int(role in (Role.INPUT, Role.ACTIVATION, Role.GRADIENT) and not axis) for axis in range(len(shape)))
        self.tensors.append(TensorSpec(shape, dtype, role, view_of=view_of, slope=slope))
        return len(self.tensors) - 1

    def op(self, body, layer, phase, inputs, *outputs, letters=()):
        slope = ()
        if isinstance(body, MatMul):  # samples are summed in dW, rows of the result else
            slope = tuple(int(name == ("K" if phase is W else "M")) for name in ("M", "N", "K", "count"))
        elif phase is not U:
            slope = tuple(size // self.batch if size % self.batch == 0 else 0 for size in dimensions(body))
        name = getattr(body, "function", type(body).__name__)
        self.ops.append(
            Op(body=body, name=name, layer=layer, phase=phase, inputs=inputs, outputs=outputs, letters=letters, slope=slope)
        )
        return outputs[0]

    def layer(self, name, read, out):
        """A fully connected layer; its result."""
        wide = self.tensors[read].shape[-1]
        weight = self.tensor(out, wide, role=Role.PARAMETER)
        turned = self.tensor(wide, out, role=Role.PARAMETER, view_of=weight)
        return self.op(MatMul(self.batch, out, wide), name, F, (read, turned), self.tensor(self.batch, out), letters=("A", "W"))

    def step(self):
        return Step(name="made", batch=self.batch, ops=tuple(self.ops), tensors=tuple(self.tensors))


def exchanges(step):
    return [op for op in step.ops if isinstance(op.body, Collective)]


# -- layouts --


def rewritten():
    """Y is read by a second layer, rectified in place, and read by a third and by backward."""
    made = Making()
    y = made.layer("first", made.tensor(BATCH, WIDE, role=Role.INPUT), WIDE)
    made.layer("second", y, 20)
    again = made.tensor(BATCH, WIDE, view_of=y)
    made.op(ElementWise("relu_", BATCH * WIDE), "rectified", F, (y,), again)
    return made, y, again


def test_what_was_rewritten_is_gathered_again():
    made, _, again = rewritten()
    made.layer("third", again, 28)
    made.layer("fourth", again, 36)
    mine = parallel.model(made.step(), DEVICES)
    found = [(op.layer, op.body.kind, op.body.elements) for op in exchanges(mine)]
    assert found == [("second", "all_gather", BATCH * WIDE), ("third", "all_gather", BATCH * WIDE)]  # once for each contents
    rectified = next(index for index, op in enumerate(mine.ops) if op.layer == "rectified")
    gathered = [index for index, op in enumerate(mine.ops) if isinstance(op.body, Collective)]
    assert rectified in mine.dependencies[gathered[1]]
    for layer, source in (("second", 0), ("third", 1), ("fourth", 1)):
        index = next(index for index, op in enumerate(mine.ops) if op.layer == layer and op.is_product)
        assert set(gathered) & set(mine.dependencies[index]) == {gathered[source]}


@pytest.mark.parametrize("in_place", [True, False])
def test_backward_reads_the_whole_that_was_kept_unless_it_is_out_of_date(in_place):
    made, y, again = rewritten()
    if not in_place:
        made.ops.pop()
        again = y
    dy, dx = (made.tensor(BATCH, WIDE, role=Role.GRADIENT) for _ in range(2))
    made.op(ElementWise("threshold_backward", BATCH * WIDE), "rectified", X, (again, dy), dx)
    mine = parallel.model(made.step(), DEVICES, stored="whole")
    (gather,) = exchanges(mine)
    read = mine.base(mine.ops[-1].inputs[0])
    assert read == (mine.base(y) if in_place else gather.outputs[0])


# -- between products --


@pytest.mark.parametrize("function", ["topk", "max", "amax", "argmax", "prod"])
def test_what_selects_among_features_reads_them_whole(function):
    made = Making()
    y = made.layer("classes", made.tensor(BATCH, 5, role=Role.INPUT), WIDE)
    made.op(Reduction(function, BATCH * WIDE, BATCH), "chosen", F, (y,), made.tensor(BATCH, 1))
    mine = parallel.model(made.step(), DEVICES)
    assert [(op.body.kind, op.body.elements) for op in exchanges(mine)] == [("all_gather", BATCH * WIDE)]
    assert mine.ops[-1].body == Reduction(function, BATCH * WIDE, BATCH)
    assert mine.tensors[mine.ops[-1].inputs[0]].shape == (BATCH, WIDE)


@pytest.mark.parametrize(
    ("function", "values"),
    [
        ("layer_norm", 2),  # sum, sum of squares
        ("layer_norm_backward", 2),
        ("softmax", 2),  # maximum, sum of exponentials
        ("log_softmax", 2),
        ("softmax_backward_data", 1),  # sum of dY times Y
        ("log_softmax_backward_data", 1),
    ],
)
def test_statistics_of_each_row_are_summed_over_devices(function, values):
    made = Making()
    y = made.layer("classes", made.tensor(BATCH, 5, role=Role.INPUT), WIDE)
    made.op(Reduction(function, BATCH * WIDE, BATCH * WIDE, passes=3), "normal", F, (y,), made.tensor(BATCH, WIDE))
    mine = parallel.model(made.step(), DEVICES)
    assert [(op.body.kind, op.body.elements) for op in exchanges(mine)] == [("all_reduce", values * BATCH)]
    first, _, last = mine.ops[-3:]
    piece = BATCH * WIDE // DEVICES
    assert first.body == Reduction(f"{function}_statistics", piece, values * BATCH)
    assert last.body == Reduction(function, piece, piece, passes=2)


# -- the choice of modes --


def chain(batch, widths, normal=()):
    """Fully connected layers one after the other, forward and backward; some of their results are normalised."""
    made = Making(batch)
    read, kept = made.tensor(batch, widths[0], role=Role.INPUT), []
    for number, out in enumerate(widths[1:]):
        name = f"fc{number}"
        result = made.layer(name, read, out)
        kept.append((name, made.ops[-1].inputs[1], read, result))
        if number in normal:
            body = Reduction("layer_norm", batch * out, batch * out, passes=2)
            result = made.op(body, f"normal{number}", F, (result,), made.tensor(batch, out))
        read = result
    gradient = made.op(
        ElementWise("mul", batch * widths[-1]), "loss", X, (read,), made.tensor(batch, widths[-1], role=Role.GRADIENT)
    )
    for number in reversed(range(len(kept))):
        name, turned, read, result = kept[number]
        wide, out = made.tensors[turned].shape
        if number in normal:
            body = Reduction("layer_norm_backward", batch * out, batch * out, passes=2)
            below = made.tensor(batch, out, role=Role.GRADIENT)
            gradient = made.op(body, f"normal{number}", X, (gradient, result), below)
        above = gradient
        weight = made.tensors[turned].view_of
        if number:
            dx = made.tensor(batch, wide, role=Role.GRADIENT)
            gradient = made.op(MatMul(batch, wide, out), name, X, (above, weight), dx, letters=("G", "W"))
        dw = made.tensor(out, wide, role=Role.PARAMETER_GRADIENT)
        turned = made.tensor(out, batch, role=Role.GRADIENT, view_of=above)
        made.tensors[turned] = TensorSpec((out, batch), role=Role.GRADIENT, view_of=above, slope=(0, 1))
        made.op(MatMul(out, wide, batch), name, W, (turned, read), dw, letters=("G", "A"))
        new = made.tensor(out, wide, role=Role.PARAMETER, view_of=weight)
        made.op(Update("SGD", out * wide), name, U, (weight, dw), new)
    return made.step()


def carried(step, **options):
    """Of every choice for each layer."""
    layers = sorted({op.layer for op in step.ops if op.is_product})
    return {
        modes: parallel.carried_bytes(parallel.mixed(step, DEVICES, choice=dict(zip(layers, modes, strict=True)), **options))
        for modes in product(("data", "model"), repeat=len(layers))
    }


@pytest.mark.parametrize(
    ("batch", "widths", "normal", "best"),
    [
        # X that is stored in pieces is gathered twice: for fc2 that is dearer than its weights, for fc3 it is not
        (32, (8, 128, 48, 64, 64), (), ("data", "data", "data", "model")),
        (8, (16, 12, 32, 4), (), ("model", "data", "data")),
        # what a normalisation exchanges under `model` is not estimated: only a choice with that mode charged double has fc0 apart
        (32, (64, 4, 96, 128), (0,), ("data", "data", "model")),
        (16, (96, 12, 4, 32), (2,), ("model", "data", "data")),
    ],
)
def test_auto_finds_the_best_of_all_choices(batch, widths, normal, best):
    step = chain(batch, widths, normal)
    every = carried(step)
    assert min(every, key=every.__getitem__) == best
    assert [modes for modes, size in every.items() if size == every[best]] == [best]
    assert parallel.carried_bytes(parallel.mixed(step, DEVICES)) == every[best]


# -- gradients --


def test_a_bucket_holds_one_element_type():
    made = Making()
    dy, x = made.tensor(WIDE, BATCH, role=Role.GRADIENT), made.tensor(BATCH, WIDE)
    types = ("fp32", "fp32", "bf16", "bf16", "fp32")
    for number, dtype in enumerate(types):
        dw = made.tensor(WIDE, WIDE, role=Role.PARAMETER_GRADIENT, dtype=dtype)
        made.op(MatMul(WIDE, WIDE, BATCH), f"fc{number}", W, (dy, x), dw, letters=("G", "A"))
    ops, tensors = reduce_gradients(made.step(), DEVICES, bucket_bytes=10**9, reduce="once")
    sent = [op for op in ops if isinstance(op.body, Collective)]
    assert [[tensors[tensor].dtype for tensor in op.inputs] for op in sent] == [["fp32"] * 2, ["bf16"] * 2, ["fp32"]]
    assert [op.body.elements for op in sent] == [2 * WIDE * WIDE, 2 * WIDE * WIDE, WIDE * WIDE]


@pytest.mark.parametrize("layers", [("cell", "cell"), ("embedding", "decoder")])
def test_every_call_is_exchanged_but_tied_weights_are_summed_first(layers):
    """Two calls of one layer exchange each their gradient, two layers with the same weights the sum of theirs."""
    made = Making()
    dy, x = made.tensor(WIDE, BATCH, role=Role.GRADIENT), made.tensor(BATCH, WIDE)
    parts = [made.tensor(WIDE, WIDE, role=Role.GRADIENT) for _ in layers]
    for layer, part in zip(layers, parts, strict=True):
        made.op(MatMul(WIDE, WIDE, BATCH), layer, W, (dy, x), part, letters=("G", "A"))
    total = made.tensor(WIDE, WIDE, role=Role.PARAMETER_GRADIENT)
    weight = made.tensor(WIDE, WIDE, role=Role.PARAMETER)
    made.op(ElementWise("add", WIDE * WIDE), layers[0], W, tuple(parts), total)
    made.op(Update("SGD", WIDE * WIDE), layers[0], U, (weight, total), made.tensor(WIDE, WIDE, role=Role.PARAMETER, view_of=weight))
    step = made.step()
    ops, _ = reduce_gradients(step, DEVICES, bucket_bytes=0, reduce="every_call")
    sent = [op.inputs for op in ops if isinstance(op.body, Collective)]
    assert sorted(sent) == ([(part,) for part in parts] if len(set(layers)) == 1 else [(total,)])
    once, _ = reduce_gradients(step, DEVICES, bucket_bytes=0, reduce="once")
    assert [op.inputs for op in once if isinstance(op.body, Collective)] == [(total,)]


def test_a_copy_of_one_layers_features_is_cut_as_they_are():
    """Of 4 samples on 4 devices: the piece is a quarter of the features, not a sample."""
    made = Making(batch=4)
    y = made.layer("first", made.tensor(4, 5, role=Role.INPUT), WIDE)
    made.op(Copy("clone", 4 * WIDE), "copied", F, (y,), made.tensor(4, WIDE))
    mine = parallel.model(made.step(), DEVICES)
    assert mine.tensors[mine.ops[-1].outputs[0]].shape == (4, WIDE // DEVICES)
    assert mine.ops[-1].body == Copy("clone", WIDE)


def test_pieces_of_two_layers_side_by_side_are_the_share_of_both():
    """12 and 6 features on 4 devices: 3 and 2 of them, 5 of 18."""
    made = Making(batch=4)
    x = made.tensor(4, 5, role=Role.INPUT)
    parts = tuple(made.layer(name, x, wide) for name, wide in (("first", 12), ("second", 6)))
    made.op(Copy("cat", 4 * 18), "joined", F, parts, made.tensor(4, 18))
    mine = parallel.model(made.step(), DEVICES)
    assert mine.tensors[mine.ops[-1].outputs[0]].shape == (4, 5)
    assert mine.ops[-1].body == Copy("cat", 4 * 5)


def test_what_was_gathered_is_read_itself_where_all_of_it_is_read():
    made = Making()
    y = made.layer("first", made.tensor(BATCH, 5, role=Role.INPUT), WIDE)
    made.layer("second", y, 20)
    mine = parallel.model(made.step(), DEVICES)
    (gather,) = exchanges(mine)
    (second,) = (op for op in mine.ops if op.layer == "second" and op.is_product)
    assert second.inputs[0] == gather.outputs[0]
    assert len(mine.tensors) == len(made.tensors) + 1
