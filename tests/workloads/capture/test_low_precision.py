"""fp8 recipes and integer weights: operands by their own element type, scales and histories by their bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard import capture
from trainyard.errors import NotModelled
from trainyard.ir import MatMul, Phase, Role, Step

ROWS, IN, OUT, HISTORY = 32, 64, 128, 16


def in_fp8(x: Tensor, dtype: torch.dtype, amax: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The tensor in fp8 and the factor that gives its values back, from its own largest value or from that of steps before."""
    scale = torch.finfo(dtype).max / (x.abs().amax().float() if amax is None else amax).clamp_min(1e-12)
    return (x.float() * scale).to(dtype), scale.reciprocal()


class ScaledProduct(torch.autograd.Function):
    """Input and weight in e4m3, gradients in e5m2 (P. Micikevicius et al.: FP8 Formats for Deep Learning, 2022)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, x_amax: Tensor | None, weight_amax: Tensor | None) -> Tensor:
        a, a_scale = in_fp8(x, torch.float8_e4m3fn, x_amax)
        b, b_scale = in_fp8(weight, torch.float8_e4m3fn, weight_amax)
        ctx.save_for_backward(a, a_scale, b, b_scale)
        return torch._scaled_mm(a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        a, a_scale, b, b_scale = ctx.saved_tensors
        g, g_scale = in_fp8(gradient, torch.float8_e5m2)
        by_column = b.t().contiguous().t()
        d_input = torch._scaled_mm(g, by_column, scale_a=g_scale, scale_b=b_scale, out_dtype=torch.bfloat16)
        d_weight = torch._scaled_mm(
            g.t().contiguous(), a.t().contiguous().t(), scale_a=g_scale, scale_b=a_scale, out_dtype=torch.bfloat16
        )
        return d_input, d_weight, None, None


class Float8Linear(nn.Module):
    """A linear layer in fp8, with the scale of this step's values or, `delayed`, of the largest values of the last steps."""

    def __init__(self, delayed: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(OUT, IN, dtype=torch.bfloat16))
        self.delayed = delayed
        if delayed:
            self.register_buffer("x_history", torch.ones(HISTORY))
            self.register_buffer("weight_history", torch.ones(HISTORY))

    def forward(self, x: Tensor) -> Tensor:
        amax: list[Tensor | None] = [None, None]
        if self.delayed:
            for index, (history, tensor) in enumerate(((self.x_history, x), (self.weight_history, self.weight))):
                amax[index] = history.amax()
                history.copy_(history.roll(1))
                history[0] = tensor.detach().abs().amax()
        y: Tensor = ScaledProduct.apply(x, self.weight, *amax)
        return y


class Int8Weight(nn.Module):
    """A frozen weight in int8 with a scale for each output, and a trained addition."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (OUT, IN), dtype=torch.int8))
        self.register_buffer("scale", torch.ones(OUT, dtype=torch.bfloat16))
        self.trained = nn.Linear(IN, OUT, bias=False, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch._weight_int8pack_mm(x, self.weight, self.scale) + self.trained(x)
        return y


class Int8Product(nn.Module):
    """Input and weight in int8."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (IN, OUT), dtype=torch.int8))
        self.factor = nn.Parameter(torch.ones(OUT))

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(1, keepdim=True) / 127
        return torch._int_mm((x / scale).to(torch.int8), self.weight) * scale * self.factor


class FourBitWeight(nn.Module):
    """A frozen weight in 4 bits, expanded in forward, and a trained addition of low rank (T. Dettmers et al.: QLoRA, 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(0, 255, (OUT * IN // 2, 1), dtype=torch.uint8))
        self.register_buffer("largest", torch.ones(OUT * IN // 64))
        self.register_buffer("code", torch.linspace(-1, 1, 16))
        self.down, self.up = (nn.Linear(*size, bias=False, dtype=torch.bfloat16) for size in ((IN, 4), (4, OUT)))

    def forward(self, x: Tensor) -> Tensor:
        numbers = torch.cat([self.weight >> 4, self.weight & 15], 1).long()
        weight = (self.code[numbers].view(-1, 64) * self.largest[:, None]).view(OUT, IN).to(torch.bfloat16)
        y: Tensor = x @ weight.t() + self.up(self.down(x))
        return y


def step_of(model: nn.Module, *, real: bool, dtype: torch.dtype = torch.bfloat16) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return capture(model, torch.randn(ROWS, IN, dtype=dtype), loss=lambda y: y.float().sum(), optimizer=optimizer, real=real)


def products(step: Step) -> list[tuple[Any, ...]]:
    found = [op for op in step if op.is_product]
    return [(op.phase, op.letters, *[step.tensors[i].dtype for i in op.inputs[:2]]) for op in found]


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("delayed", [False, True])
def test_fp8_products_have_their_operands_and_scales(delayed: bool, real: bool) -> None:
    step = step_of(Float8Linear(delayed), real=real)
    assert products(step) == [
        (Phase.FORWARD, ("A", "W"), "fp8", "fp8"), (Phase.GRAD_INPUT, ("G", "W"), "fp8", "fp8"),
        (Phase.GRAD_WEIGHT, ("G", "A"), "fp8", "fp8"),
    ]  # fmt: skip
    for op in step:
        if op.is_product:
            assert isinstance(op.body, MatMul)
            assert op.body.macs == ROWS * IN * OUT
            assert [step.tensors[i].shape for i in op.inputs[2:]] == [(), ()]
    histories = {t.name for t in step.tensors if t.role is Role.BUFFER and t.shape == (HISTORY,)}
    assert len(histories) == (2 if delayed else 0)
    assert ty.run(step, "h200").time_s > 0
    with pytest.raises(NotModelled, match="no fp8 tensor cores"):
        ty.run(step, "a100")


@pytest.mark.parametrize("real", [False, True])
def test_products_with_integer_weights(real: bool) -> None:
    frozen = step_of(Int8Weight(), real=real)
    assert products(frozen)[0] == (Phase.FORWARD, ("", ""), "bf16", "int8")
    (weight,) = {t for t in frozen.tensors if t.name == "weight"}
    assert (weight.elements, weight.dtype, weight.role) == (OUT * IN, "int8", Role.BUFFER)
    quantised = step_of(Int8Product(), real=real, dtype=torch.float32)
    assert products(quantised) == [(Phase.FORWARD, ("", ""), "int8", "int8")]
    assert ty.run(quantised, "h200").time_s > 0
    with pytest.raises(NotModelled, match="int8"):
        ty.run(quantised, "v100")


@pytest.mark.parametrize("real", [False, True])
def test_a_weight_of_four_bits_is_read_packed_and_expanded_in_every_step(real: bool) -> None:
    step = step_of(FourBitWeight(), real=real)
    packed = next(t for t in step.tensors if t.name == "weight")
    assert (packed.elements, packed.dtype) == (OUT * IN // 2, "uint8")
    expanded = [op for op in step if op.phase is Phase.FORWARD and OUT * IN in [step.tensors[i].elements for i in op.outputs]]
    assert {step.tensors[op.outputs[0]].dtype for op in expanded} >= {"uint8", "fp32", "bf16"}
    assert not [p for p in products(step) if p[0] is Phase.GRAD_WEIGHT and p[1] == ("", "")]


def test_an_int8_product_runs_at_the_rate_that_the_machine_states() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.ones(8192, 8192, dtype=torch.int8))
            self.factor = nn.Parameter(torch.ones(8192))

        def forward(self, x: Tensor) -> Tensor:
            return torch._int_mm(x, self.weight) * self.factor

    step = capture(Wide(), torch.ones(8192, 8192, dtype=torch.int8), loss=lambda y: y.sum())
    product = next(index for index, op in enumerate(step.ops) if op.is_product)
    gpu = ty.machine("h200")
    at_peak = step.ops[product].macs / (gpu.sms * gpu.int8_macs * gpu.clock_hz)
    assert at_peak < ty.run(step, "h200").time_s < 10 * at_peak + 1e-3


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.to(torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.float()


class RoundedProduct(torch.autograd.Function):
    """A product whose forward pass calls other custom functions first, as recipes for fp8 do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return Rounded.apply(x) @ Rounded.apply(weight).t()  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = (tensor.to(torch.bfloat16) for tensor in ctx.saved_tensors)
        return (gradient @ weight).float(), (gradient.t() @ x).float()


@pytest.mark.parametrize("real", [False, True])
def test_products_of_custom_functions_that_call_others_have_letters(real: bool) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(IN, IN))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = RoundedProduct.apply(x, self.weight)  # type: ignore[no-untyped-call]
            return y.float()

    step = step_of(nn.Sequential(Layer(), Layer()), real=real, dtype=torch.float32)
    backward = [(Phase.GRAD_INPUT, ("G", "W"), "bf16", "bf16"), (Phase.GRAD_WEIGHT, ("G", "A"), "bf16", "bf16")]
    assert products(step) == [(Phase.FORWARD, ("A", "W"), "bf16", "bf16")] * 2 + backward * 2
