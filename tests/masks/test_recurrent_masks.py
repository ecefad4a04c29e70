"""Recurrent layers: what each unrolled product is shown, against the operands that torch really multiplied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.devices.accelerator.masked_tiles import viewer
from trainyard.ir import DENSE, Phase
from trainyard.masks.views import matrix
from trainyard.workloads.capture import capture
from trainyard.workloads.recording import record_masks

STEPS, BATCH = 5, 3


class Net(nn.Module):
    def __init__(self, rnn, wide):
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(wide, 2)

    def forward(self, x, state=None):
        output, _ = self.rnn(x) if state is None else self.rnn(x, state)
        return self.head(output)


class Multiplied(TorchDispatchMode):
    """Every (left, right) of a matrix product, in order."""

    def __init__(self):
        super().__init__()
        self.pairs = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("addmm", "mm"):
            left, right = args[-2:]
            self.pairs.append((left.detach().clone(), right))
        return function(*args, **(kwargs or {}))


def sparse(rnn):
    """Some hidden units are zero for ever: what goes into their cell has no weight."""
    with torch.no_grad():
        for name, parameter in rnn.named_parameters():
            if "hr" not in name:
                parts = parameter.view(-1, rnn.hidden_size, *parameter.shape[1:])
                parts[2 % len(parts), (1 if "reverse" in name else 0) :: 3] = 0  # the cell gate of an LSTM, n of a GRU
    return rnn


def run(rnn, tmp_path, real=False, samples=None, state=None, shape=None):
    """A Step, its masks, and of each weight the operands it met in the order of the real run."""
    wide = rnn.hidden_size if not rnn.proj_size else rnn.proj_size
    model = Net(sparse(rnn), wide * (2 if rnn.bidirectional else 1))
    x = torch.randn(*(shape or ((BATCH, STEPS) if rnn.batch_first else (STEPS, BATCH))), rnn.input_size).relu()
    inputs = (x,) if state is None else (x, state)
    step = capture(model, inputs, loss=lambda output: output.square().sum(), real=real)
    train = lambda: model(*inputs).square().sum().backward()  # noqa: E731
    masks = record_masks(train, model, path=tmp_path / "run.safetensors", samples=samples)
    with torch.backends.mkldnn.flags(enabled=False), Multiplied() as seen:
        model(*inputs)
    names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
    operands = {}
    for left, right in seen.pairs:
        operands.setdefault(names[right.data_ptr()], []).append((left != 0).numpy())
    return step, masks, operands


def operand_of_use(operands, name, number, op):
    """The operand of the `number`th use of a weight; the CPU multiplies a whole input at once, in order of time."""
    actual = operands[name]
    if len(actual) == 1 and len(actual[0]) > op.body.M:
        time = STEPS - 1 - number if name.endswith("_reverse") else number
        return actual[0].reshape(STEPS, BATCH, -1)[time]
    return actual[number]


def check(step, masks, operands):
    """Every view equals what was multiplied; returns which weights' operands were known, and which were not."""
    uses, known, dense, tensors = {}, set(), set(), {}
    for op in step.ops:
        if not op.is_product or op.layer != "rnn":
            continue
        for side, letter in enumerate(op.letters):
            view = viewer(step, op, "col2im", masks, side)
            rows, columns = ((op.body.M, op.body.K), (op.body.K, op.body.N))[side]
            actual = view(0, (0, rows), (0, columns))
            name = step.tensors[step.base(op.inputs[1])].name
            if letter == "W":
                weight = masks.bits(("rnn", 0, f"W.{name[4:]}"))
                assert np.array_equal(matrix(actual), weight if op.phase.backward else weight.T)
            elif letter == "G":
                assert actual is DENSE
            elif op.phase is Phase.FORWARD:
                number = uses[name] = uses.get(name, -1) + 1
                (dense if actual is DENSE else known).add((name[4:], number))
                if actual is not DENSE:
                    target = operand_of_use(operands, name, number, op)
                    tensors[op.inputs[0]] = target
                    assert np.array_equal(matrix(actual), target), (name, number)
            elif op.inputs[1] in tensors:
                assert np.array_equal(matrix(actual), tensors[op.inputs[1]])
            else:
                assert actual is DENSE
    return known, dense


def uses_of(names, first=0):
    return {(name, number) for name in names for number in range(first, STEPS)}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["relu", "gru", "lstm"])
def test_masks_of_a_bidirectional_layer_are_exact(kind, batch_first, tmp_path):
    torch.manual_seed(1)
    options = {"batch_first": batch_first, "bidirectional": True}
    makers = {"relu": lambda: nn.RNN(4, 6, nonlinearity="relu", **options), "gru": lambda: nn.GRU(4, 6, **options)}
    rnn = makers.get(kind, lambda: nn.LSTM(4, 6, **options))()
    known, dense = check(*run(rnn, tmp_path))
    assert known == uses_of(["weight_ih_l0", "weight_hh_l0", "weight_ih_l0_reverse", "weight_hh_l0_reverse"])
    assert not dense


def test_masks_of_stacked_layers_are_exact_at_input_and_output(tmp_path):
    torch.manual_seed(2)
    known, dense = check(*run(nn.LSTM(4, 6, num_layers=3, batch_first=True), tmp_path))
    first = {("weight_hh_l0", 0), ("weight_hh_l1", 0)}  # the zeros they begin with
    assert known == uses_of(["weight_ih_l0", "weight_hh_l2"]) | first
    assert dense == uses_of(["weight_ih_l1", "weight_ih_l2"]) | uses_of(["weight_hh_l0", "weight_hh_l1"], first=1)


def test_masks_of_projected_states_are_exact(tmp_path):
    torch.manual_seed(3)
    known, dense = check(*run(nn.LSTM(4, 6, proj_size=2, batch_first=True), tmp_path))
    assert known == uses_of(["weight_ih_l0", "weight_hh_l0"])
    assert dense == uses_of(["weight_hr_l0"])


def test_a_first_state_from_the_caller_has_no_mask(tmp_path):
    torch.manual_seed(4)
    known, dense = check(*run(nn.RNN(4, 6, nonlinearity="relu"), tmp_path, state=torch.randn(1, BATCH, 6).relu()))
    assert dense == {("weight_hh_l0", 0)}
    assert known == uses_of(["weight_ih_l0"]) | uses_of(["weight_hh_l0"], first=1)


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_input_multiplied_at_once_has_the_whole_sequence(batch_first, tmp_path):
    torch.manual_seed(5)
    step, masks, operands = run(nn.LSTM(4, 6, batch_first=batch_first, bidirectional=True), tmp_path, real=True)
    known, dense = check(step, masks, operands)
    assert ("weight_ih_l0", 0) in known
    assert ("weight_ih_l0", 1) not in known
    assert not dense


def test_recorded_samples_are_repeated_over_the_batch(tmp_path):
    torch.manual_seed(6)
    step, masks, _ = run(nn.LSTM(4, 6, batch_first=True), tmp_path, samples=1)
    (first,) = [op for op in step.ops if op.is_product and op.layer == "rnn" and op.body.K == 4 and op.phase is Phase.FORWARD][:1]
    actual = matrix(viewer(step, first, "col2im", masks, 0)(0, (0, BATCH), (0, 4)))
    assert np.array_equal(actual, np.repeat(masks.bits(("rnn", 0, "A.input"))[:, 0], BATCH, axis=0))


def test_sequences_as_long_as_the_batch_stay_dense(tmp_path):
    torch.manual_seed(7)
    step, masks, _ = run(nn.RNN(4, 6, batch_first=True), tmp_path, shape=(4, 4))
    for op in step.ops:
        if op.is_product and op.layer == "rnn" and op.phase is Phase.FORWARD and op.body.K == 4:
            assert viewer(step, op, "col2im", masks, 0)(0, (0, 4), (0, 4)) is DENSE


def test_packed_sequences_stay_dense(tmp_path):
    lengths = torch.tensor([6, 5, 4, 2])
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 6, 8), lengths, batch_first=True)
    model = nn.ModuleDict({"rnn": nn.LSTM(8, 10)})
    model.forward = lambda x: model["rnn"](x)[0].data
    step = capture(model, packed, loss=lambda output: output.sum())
    masks = record_masks(lambda: model(packed).sum().backward(), model, path=tmp_path / "run.safetensors")
    products = [op for op in step.ops if op.is_product and op.phase is Phase.FORWARD]
    assert len(products) == 12
    for op in products:
        assert viewer(step, op, "col2im", masks, 0)(0, (0, op.body.M), (0, op.body.K)) is DENSE
