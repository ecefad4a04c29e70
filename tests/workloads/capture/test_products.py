"""MAC totals against torch's own counter, run on meta: every product of forward and backward, none twice."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainyard.ir import Convolution, Phase, Step
from trainyard.workloads.capture import capture
from trainyard.workloads.capture.attention.outside import attention_of

pytestmark = pytest.mark.oracle


def scalar(output: torch.Tensor) -> torch.Tensor:
    return output.float().pow(2).mean()


def on_meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def counted(model: nn.Module, *inputs: torch.Tensor, attention: Literal["sdpa", "math"] = "sdpa") -> int:
    kernels = attention_of("cuda") if attention == "sdpa" else nullcontext()
    with kernels, FlopCounterMode(display=False) as counter:
        output = model(*inputs)
        scalar(output[0] if isinstance(output, tuple) else output).backward()
    return counter.get_total_flops() // 2


def captured(model: nn.Module, *inputs: torch.Tensor) -> Step:
    return capture(model, inputs, loss=lambda output: scalar(output[0] if isinstance(output, tuple) else output))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.bags = nn.Embedding(50, 12), nn.EmbeddingBag(40, 12)
        self.head = nn.Linear(12, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(tokens) + self.bags(tokens % 40)[:, None])


class Kernel(nn.Module):
    """A convolution whose weight is a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.empty(6, 2, device="meta")), nn.Parameter(torch.empty(2, 27, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, (self.left @ self.right).view(6, 3, 3, 3))


# fmt: off
MODELS = {
    "mlp":          (lambda: nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), (4, 10)),
    "three axes":   (lambda: nn.Sequential(nn.Linear(10, 20, bias=False), nn.GELU(), nn.Linear(20, 5)), (4, 7, 10)),
    "cnn":          (lambda: nn.Sequential(
                        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)), (4, 3, 16, 16)),
    "transposed":   (lambda: nn.Sequential(
                        nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1, output_padding=1)), (2, 3, 9, 9)),
    "one axis":     (lambda: nn.Sequential(nn.Conv1d(4, 8, 5, dilation=2), nn.GLU(1), nn.Conv1d(4, 4, 3, padding=1)), (3, 4, 30)),
    "volume":       (lambda: nn.Sequential(
                        nn.Conv3d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Conv3d(4, 2, (1, 3, 3))), (2, 2, 5, 6, 6)),
    "attention":    (lambda: nn.Sequential(Attention(16, 4, False), nn.LayerNorm(16), Attention(16, 2, True)), (3, 6, 16)),
    "torch's own":  (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (3, 6, 16)),
    "lstm":         (lambda: nn.LSTM(8, 12, num_layers=2, bidirectional=True, batch_first=True), (3, 5, 8)),
    "gru":          (lambda: nn.GRU(8, 12, batch_first=True), (3, 5, 8)),
    "rnn":          (lambda: nn.RNN(8, 12, num_layers=2), (5, 3, 8)),
    "bilinear":     (lambda: nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.Linear(6, 2)), (4, 6)),
    "made kernel":  (Kernel, (2, 3, 8, 8)),
}
# fmt: on


@pytest.mark.parametrize("name", MODELS)
def test_macs_equal_torchs_counter(name: str) -> None:
    build, shape = MODELS[name]
    with torch.device("meta"):
        model = build()
    step = captured(model, on_meta(*shape))
    assert step.macs == counted(model, on_meta(*shape)) > 0


def test_embeddings_gather_and_scatter() -> None:
    with torch.device("meta"):
        model = Tokens()
    tokens = torch.zeros(4, 7, dtype=torch.long, device="meta")
    step = captured(model, tokens)
    assert step.macs == counted(model, tokens)
    gathers = {(op.layer, op.phase, op.body.scatter, op.body.rows) for op in step if type(op.body).__name__ == "Gather"}
    assert gathers == {
        ("words", Phase.FORWARD, False, 28), ("bags", Phase.FORWARD, False, 28),
        ("words", Phase.GRAD_WEIGHT, True, 28), ("bags", Phase.GRAD_WEIGHT, True, 28),
    }  # fmt: skip


@given(
    widths=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    batch=st.integers(1, 9),
    bias=st.booleans(),
)
def test_random_mlps(widths: list[int], batch: int, bias: bool) -> None:
    with torch.device("meta"):
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b, bias=bias), nn.Tanh())]
        model = nn.Sequential(*layers)
    step = captured(model, on_meta(batch, widths[0]))
    assert step.macs == counted(model, on_meta(batch, widths[0]))
    forward = sum(batch * a * b for a, b in pairwise(widths))
    assert step.only(Phase.FORWARD).macs == step.only(Phase.GRAD_WEIGHT).macs == forward
    assert step.only(Phase.GRAD_INPUT).macs == forward - batch * widths[0] * widths[1]


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, torch.Tensor]:
    """Any geometry that torch accepts, in one to three dimensions, transposed or not."""
    rank, groups, batch = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    channels = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    kernel, stride, padding = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 2))
    dilation, extent, extra = draw(st.integers(1, 2)), draw(st.integers(3, 7)), draw(st.integers(0, 2))
    transposed = draw(st.booleans())
    span = dilation * (kernel - 1) + 1
    assume(extent + 2 * padding >= span)
    assume(extra < max(stride, dilation) and (extent - 1) * stride - 2 * padding + span + extra > 0)
    kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d) if transposed else (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    more = {"output_padding": extra} if transposed else {}
    with torch.device("meta"):
        layer = kinds[rank - 1](*channels, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, **more)
    return layer, on_meta(batch, channels[0], *[extent] * rank).requires_grad_()


@given(case=convolutions())
def test_random_convolutions(case: tuple[nn.Module, torch.Tensor]) -> None:
    layer, x = case
    model, transposed = nn.Sequential(nn.Identity(), layer), "Transpose" in type(layer).__name__
    step = captured(model, x)
    products = [op for op in step if op.is_product]
    assert [op.phase for op in products] == [Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT]
    assert len({op.macs for op in products}) == 1
    assert [op.letters for op in products] == [("A", "W"), ("G", "W"), ("A", "G") if transposed else ("G", "A")]
    if layer.groups == 1:  # the counter takes the weight gradient of a grouped convolution for a dense one
        assert step.macs == counted(model, x)
    else:
        with FlopCounterMode(display=False) as counter:
            layer(x)
        assert products[0].macs == counter.get_total_flops() // 2
    body = products[0].body
    assert isinstance(body, Convolution)
    assert body.product == ("grad_input" if transposed else "forward")
    assert body.weight_elements == layer.weight.numel()
    if not transposed:
        assert body.out_size == tuple(layer(x).shape[2:])


def test_the_weight_gradient_of_a_depthwise_convolution_is_not_dense() -> None:
    with torch.device("meta"):
        model = nn.Conv2d(24, 24, 3, groups=24, padding=1)
    step = captured(model, on_meta(1, 24, 32, 32))
    forward, weight = (op for op in step if op.is_product)
    assert forward.macs == weight.macs == 24 * 32 * 32 * 9
    assert counted(model, on_meta(1, 24, 32, 32)) > step.macs


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_counts_like_the_plain_one(causal: bool) -> None:
    """Forward 2 products, backward 5 with the scores recomputed."""
    model = nn.Sequential(Attention(16, 4, causal))
    x = torch.randn(3, 6, 16)
    fused = capture(model, x, loss=scalar)
    plain = capture(model, x, loss=scalar, attention="math")
    assert plain.macs == counted(model.to("meta"), on_meta(3, 6, 16), attention="math")
    inside = [op for op in fused if op.fused is not None]
    name = "causal_efficient_attention" if causal else "efficient_attention"
    assert [op.name for op in inside if op.phase is Phase.FORWARD] == [f"{name}.{part}" for part in ("scores", "softmax", "mix")]
    assert len({op.fused for op in inside}) == 2
    score = 3 * 4 * 6 * 6 * 4
    assert sum(op.macs for op in inside if op.phase is Phase.FORWARD) == 2 * score
    assert sum(op.macs for op in inside if op.phase is Phase.GRAD_INPUT) == 5 * score
    assert all(op.letters == ("", "") for op in inside if op.is_product)
    assert fused.macs == plain.macs + score
    produced = {fused.base(t) for op in fused for t in op.outputs}
    assert all(fused.base(t) in produced for op in inside for t in op.inputs)


def test_recurrent_layers_unroll_with_and_without_values() -> None:
    model = nn.LSTM(8, 12, batch_first=True)
    x = torch.randn(3, 5, 8)
    for real in (False, True):
        step = capture(model, x, loss=lambda output: scalar(output[0]), real=real)
        products = [op for op in step.only(Phase.FORWARD) if op.is_product]
        assert sum(op.macs for op in products) == 5 * 3 * 48 * (8 + 12)
        assert all(op.letters == ("A", "W") for op in products)


def test_packed_sequences_run_only_the_steps_they_hold() -> None:
    lengths = torch.tensor([6, 5, 4, 2])
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 6, 8), lengths, batch_first=True)
    step = capture(nn.LSTM(8, 10), packed, loss=lambda output: output[0].data.sum())
    assert step.only(Phase.FORWARD).macs == int(lengths.sum()) * 40 * (8 + 10)


def test_a_bilinear_layer_is_two_products_and_so_is_each_gradient() -> None:
    batch, left, right, out = 4, 6, 7, 5
    inputs = torch.randn(batch, left, requires_grad=True), torch.randn(batch, right, requires_grad=True)
    step = capture(nn.Bilinear(left, right, out), inputs, loss=scalar)
    pair, mixed = batch * left * right * out, {phase: step.only(phase).macs for phase in Phase}
    assert mixed[Phase.FORWARD] == pair + batch * out * right
    assert mixed[Phase.GRAD_WEIGHT] == batch * left * out + pair
    assert mixed[Phase.GRAD_INPUT] == pair + batch * left * right + pair + batch * out * right
    assert step.rebatchable


@pytest.mark.parametrize("masked", [False, True])
def test_transformers_with_a_causal_mask_need_no_values(masked: bool) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), 2)
    inputs = {"src": torch.randn(3, 6, 16)}
    if masked:
        inputs["mask"] = nn.Transformer.generate_square_subsequent_mask(6)
    step = capture(model, inputs, loss=scalar)
    assert step.macs == counted(model.to("meta"), on_meta(3, 6, 16))
    assert step.rebatchable


def test_a_fourier_transform_costs_five_n_log_n() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(9, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * self.gain, n=16)

    step = capture(Filter(), torch.randn(4, 16), loss=scalar)
    there, back = (op.body for op in step.only(Phase.FORWARD) if op.body.function == "fft")
    assert (there.elements, there.operations) == (4 * 9, 5 * 4)
    assert (back.elements, back.operations) == (4 * 16, 10)
