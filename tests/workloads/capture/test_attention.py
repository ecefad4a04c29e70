"""Attention is recorded as the kernel that torch takes on the device: the rules, the ops with and without values, what is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
import torch.nn.attention.flex_attention as flex
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.utils.flop_counter import FlopCounterMode

from trainyard.errors import BadInput
from trainyard.ir import Phase, Step
from trainyard.workloads.capture import capture
from trainyard.workloads.capture.attention.choice import AttentionCall, Form, choice_of
from trainyard.workloads.capture.attention.outside import attention_of
from trainyard.workloads.capture.attention.values import on_cpu

HALF = torch.bfloat16
TOKENS = 16


class Attention(nn.Module):
    """Self-attention with its projections. `keys` tokens of the input are keys, `heads[1]` heads share them."""

    def __init__(self, *, heads: tuple[int, int] = (4, 4), width: int = 16, keys: int = TOKENS, bias: bool = False, **options: Any):
        super().__init__()
        self.heads, self.keys, self.options = heads, keys, options
        self.q, self.k, self.v = (nn.Linear(32, width * h) for h in (heads[0], heads[1], heads[1]))
        self.out = nn.Linear(width * heads[0], 32)
        self.bias = nn.Parameter(torch.zeros(heads[0], TOKENS, keys)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        given = x, x[:, : self.keys], x[:, : self.keys]
        layers = zip((self.q, self.k, self.v), given, (self.heads[0], self.heads[1], self.heads[1]), strict=True)
        query, key, value = (layer(t).unflatten(-1, (heads, -1)).transpose(1, 2) for layer, t, heads in layers)
        options = self.options if self.bias is None else {**self.options, "attn_mask": self.bias}
        mixed = F.scaled_dot_product_attention(query, key, value, **options)
        return self.out(mixed.transpose(1, 2).flatten(2))


def loss(output: Any) -> Tensor:
    return (output[0] if isinstance(output, tuple) else output).float().pow(2).sum()


def step_of(model: nn.Module, dtype: torch.dtype = torch.float32, **options: Any) -> Step:
    return capture(model.to(dtype), torch.randn(2, TOKENS, 32, dtype=dtype), loss=loss, **options)


def form(step: Step) -> str:
    return " ".join(step.attention.values())


# ---- the choice
def operands(*shapes: tuple[int, ...], dtype: torch.dtype = HALF) -> list[Tensor]:
    return [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]


def chosen(shapes: list[tuple[int, ...]], dtype: torch.dtype = HALF, mask: Tensor | None = None, **options: Any) -> Form:
    return choice_of(AttentionCall(*operands(*shapes, dtype=dtype), mask, **options), "cuda").form


def square(*, width: int = 64, heads: int = 4, key_heads: int = 4, keys: int = 8, depth: int = 0) -> list[tuple[int, ...]]:
    return [(2, heads, 8, width), (2, key_heads, keys, width), (2, key_heads, keys, depth or width)]


MASK = torch.empty(8, 8, dtype=HALF, device="meta")


# fmt: off
CHOICES: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("flash",     square(),                          {}),
    ("flash",     square(),                          {"dtype": torch.float16, "dropout": 0.1, "causal": True}),
    ("efficient", square(),                          {"dtype": torch.float32}),
    ("math",      square(),                          {"dtype": torch.float64}),
    ("efficient", square(),                          {"mask": MASK}),
    ("flash",     square(width=256),                 {}),
    ("efficient", square(width=264),                 {}),
    ("flash",     square(width=20),                  {}),
    ("math",      square(width=20),                  {"mask": MASK}),
    ("efficient", square(width=20),                  {"dtype": torch.float32}),
    ("math",      square(width=18),                  {"dtype": torch.float32}),
    ("efficient", square(width=192, depth=128),      {}),
    ("flash",     square(keys=24),                   {}),
    ("efficient", square(keys=24),                   {"causal": True}),
    ("flash",     square(keys=24),                   {"causal": True, "lower_right": True}),
    ("flash",     square(key_heads=2),               {"grouped": True}),
    ("math",      square(key_heads=2),               {"grouped": True, "dtype": torch.float32}),
    ("math",      square(key_heads=1),               {}),
    ("math",      square(heads=4, key_heads=3),      {"grouped": True}),
    ("math",      [shape[1:] for shape in square()], {}),
    ("math",      square(keys=0),                    {}),
]
# fmt: on


@pytest.mark.parametrize(("expected", "shapes", "options"), CHOICES)
def test_cuda_takes_the_first_kernel_that_takes_the_call(expected: str, shapes: list[tuple[int, ...]], options: Any) -> None:
    assert chosen(shapes, **options) == expected


def test_a_transposed_head_is_no_operand_of_a_fused_kernel() -> None:
    query, key, value = (t.mT for t in operands(*[(2, 4, 64, 8)] * 3))
    assert choice_of(AttentionCall(query, key, value), "cuda").form == "math"


def test_flags_and_sdpa_kernel_are_honoured() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert chosen(square()) == "math"
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        assert chosen(square()) == "efficient"
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert chosen(square()) == "efficient"
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        assert chosen(square()) == "cudnn"
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert chosen(square()) == "efficient"
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_what_torch_would_refuse_is_recorded_with_a_note() -> None:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        step = step_of(Attention())
        masked = step_of(Attention(bias=True), HALF)
    assert (form(step), form(masked)) == ("flash", "math")
    assert "flash: takes no torch.float32" in step.notes[-1]
    assert "flash: takes no mask" in masked.notes[-1]


@given(
    batch=st.integers(1, 2),
    heads=st.tuples(*[st.sampled_from((1, 2, 4))] * 3),
    tokens=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    widths=st.tuples(st.sampled_from((1, 4, 7, 8)), st.sampled_from((4, 8))),
    dtype=st.sampled_from((torch.float32, torch.bfloat16, torch.float16, torch.float64)),
    mask=st.sampled_from((None, "square", "keys", "all", "three", "bool", "learned")),
    layout=st.sampled_from(("dense", "transposed", "three")),
    options=st.tuples(st.sampled_from((0.0, 0.1)), st.booleans(), st.booleans()),
)
def test_the_rules_of_the_cpu_are_torchs(
    batch: int, heads: tuple[int, int, int], tokens: tuple[int, int], widths: tuple[int, int], dtype: torch.dtype,
    mask: str | None, layout: str, options: tuple[float, bool, bool],
) -> None:  # fmt: skip
    """`torch._fused_sdp_choice` answers for CPU tensors."""
    queries, keys = tokens
    width = widths[0]
    shapes = [(batch, heads[0], queries, width), (batch, heads[1], keys, width), (batch, heads[2], keys, widths[1])]
    tensors = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    if layout == "transposed":
        tensors = [torch.zeros(*shape[:2], shape[3], shape[2], dtype=dtype).mT for shape in shapes]
    elif layout == "three":
        tensors = [tensor[0] for tensor in tensors]
    masks: dict[str | None, Tensor | None] = {
        None: None,
        "square": torch.zeros(queries, keys, dtype=dtype),
        "keys": torch.zeros(batch, 1, 1, keys, dtype=dtype),
        "all": torch.zeros(batch, heads[0], queries, keys, dtype=dtype),
        "three": torch.zeros(1, queries, keys, dtype=dtype),
        "bool": torch.zeros(queries, keys, dtype=torch.bool),
        "learned": torch.zeros(queries, keys, dtype=dtype, requires_grad=True),
    }
    dropout, causal, grouped = options
    causal = causal and mask is None
    torchs = torch._fused_sdp_choice(*tensors, masks[mask], dropout, causal, enable_gqa=grouped)
    ours = choice_of(AttentionCall(*tensors, masks[mask], dropout, causal, grouped), "cpu").form
    assert ours == ("flash" if torchs == SDPBackend.FLASH_ATTENTION.value else "math")


# ---- the ops
# fmt: off
CASES: dict[str, tuple[Callable[[], nn.Module], torch.dtype, str]] = {
    "fp32":            (Attention,                                                                    torch.float32, "efficient"),
    "causal, dropout": (lambda: Attention(is_causal=True, dropout_p=0.1),                             torch.float32, "efficient"),
    "bias":            (lambda: Attention(bias=True),                                                 torch.float32, "efficient"),
    "bias, odd":       (lambda: Attention(bias=True, keys=7),                                         HALF,          "efficient"),
    "padding":         (lambda: Attention(attn_mask=torch.ones(1, 1, 1, TOKENS, dtype=torch.bool)),   HALF,          "efficient"),
    "bf16":            (Attention,                                                                    HALF,          "flash"),
    "few keys":        (lambda: Attention(keys=5, is_causal=True),                                    HALF,          "efficient"),
    "lower right":     (lambda: Attention(keys=7, attn_mask=causal_lower_right(TOKENS, 7)),           HALF,          "flash"),
    "lower right 32":  (lambda: Attention(keys=7, attn_mask=causal_lower_right(TOKENS, 7)),           torch.float32, "efficient"),
    "grouped":         (lambda: Attention(heads=(4, 2), enable_gqa=True, is_causal=True, dropout_p=.1), HALF,        "flash"),
    "grouped fp32":    (lambda: Attention(heads=(4, 2), enable_gqa=True),                             torch.float32, "math"),
    "odd width":       (lambda: Attention(width=10),                                                  HALF,          "flash"),
    "torch's own":     (lambda: nn.TransformerEncoderLayer(32, 4, 16, batch_first=True),              HALF,          "flash"),
    "weights wanted":  (lambda: nn.Sequential(WithWeights()),                                         HALF,          "eager"),
}
# fmt: on


class WithWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=True)[0]


def described(step: Step) -> list[tuple[Any, ...]]:
    specs = step.tensors
    return [
        (op.name, op.body, op.layer, op.phase, op.fused, [specs[t].shape for t in op.inputs], [specs[t].shape for t in op.outputs])
        for op in step
    ]


@pytest.mark.parametrize("case", CASES)
def test_default_and_real_capture_record_the_same_ops_of_the_same_form(case: str) -> None:
    build, dtype, expected = CASES[case]
    with torch.random.fork_rng():
        step, real = step_of(build(), dtype), step_of(build(), dtype, real=True)
    assert form(step) == form(real) == expected
    assert described(step) == described(real)
    assert step.notes == real.notes
    assert step.rebatchable


class FrozenKeys(nn.Module):
    """The keys need no gradient: their weights are frozen, and so is what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(32, 32), nn.Linear(32, 32).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        query, key = (layer(x).unflatten(-1, (4, 8)).transpose(1, 2) for layer in (self.query, self.key))
        return F.scaled_dot_product_attention(query, key, query)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_a_layer_with_frozen_keys_is_recorded_alike_with_and_without_values(dtype: torch.dtype) -> None:
    step, real = step_of(FrozenKeys(), dtype), step_of(FrozenKeys(), dtype, real=True)
    assert described(step) == described(real)


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"lower right 32"}))  # torch's counter takes its tokens for heads
def test_macs_are_those_that_torchs_counter_gives_the_kernels(case: str) -> None:
    build, dtype, _ = CASES[case]
    model = build().to(dtype)
    with attention_of("cuda"), FlopCounterMode(display=False) as counter:
        loss(model(torch.randn(2, TOKENS, 32, dtype=dtype))).backward()
    total = counter.get_total_flops() // 2
    assert step_of(build(), dtype).macs == total > 0


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_device_is_that_of_the_choice(device: Literal["cuda", "cpu"]) -> None:
    """Dropout is no part of the CPU's kernel."""
    assert form(step_of(Attention(dropout_p=0.1), device=device)) == {"cuda": "efficient", "cpu": "math"}[device]
    assert form(step_of(Attention(), device=device)) == {"cuda": "efficient", "cpu": "flash"}[device]
    assert form(step_of(Attention(), device=device, attention="math")) == "math"


def test_unknown_options_are_refused() -> None:
    with pytest.raises(BadInput, match="attention must be"):
        step_of(Attention(), attention="flash")
    with pytest.raises(BadInput, match="device must be"):
        step_of(Attention(), device="tpu")


def test_keys_and_values_of_fewer_heads_are_not_repeated() -> None:
    step = step_of(Attention(heads=(4, 2), enable_gqa=True), HALF)
    inside = [op for op in step if op.fused is not None]
    keys = {step.tensors[t].shape for op in inside if op.name.endswith((".scores", ".grad_key")) for t in (*op.inputs, *op.outputs)}
    assert {(2, 2, TOKENS, 16), (2, 4, TOKENS, 16)} <= keys
    assert all(op.body.count == 8 for op in inside if op.is_product)
    assert not any("repeat" in op.name for op in step)


def test_a_bias_is_read_in_both_directions_and_its_gradient_written() -> None:
    step = step_of(Attention(bias=True))
    reading = [op for op in step if op.fused is not None and any(step.tensors[step.base(t)].name == "bias" for t in op.inputs)]
    assert [op.name for op in reading] == ["efficient_attention.softmax", "efficient_attention.shares"]
    gradient = next(op for op in step if op.name == "efficient_attention.grad_softmax")
    assert (2, 4, TOKENS, TOKENS) in [step.tensors[t].shape for t in gradient.outputs[1:]]


def test_backward_reads_the_output_and_the_sums_of_the_rows_that_forward_saved() -> None:
    step = step_of(Attention(), HALF)
    mix = next(op for op in step if op.name == "flash_attention.mix")
    saved = {step.base(t) for t in mix.outputs}
    assert [step.tensors[t].shape for t in mix.outputs] == [(2, 4, TOKENS, 16), (2, 4, TOKENS)]
    read = {step.base(t) for op in step if op.fused is not None and op.phase is Phase.GRAD_INPUT for t in op.inputs}
    assert saved <= read


def test_scores_are_no_memory_of_the_step() -> None:
    """2048 tokens: the scores of one head alone are larger than all that a fused step keeps."""
    model = Attention(keys=2048)
    x = torch.empty(1, 2048, 32, device="meta", dtype=HALF)
    fused, apart = (capture(model.to("meta", HALF), x, loss=loss, attention=attention) for attention in ("sdpa", "math"))  # type: ignore[arg-type]
    scores = 4 * 2048 * 2048 * 2
    assert max(size for _, size in fused.transients) < scores / 4
    assert max(size for _, size in apart.transients) >= scores
    assert sum(size for _, size in apart.transients) > 10 * sum(size for _, size in fused.transients)


def test_a_frozen_teacher_saves_nothing_and_is_recorded_in_its_form() -> None:
    teacher = Attention().to(HALF).requires_grad_(False)

    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = Attention(), teacher

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                aim = self.teacher(x)
            return self.student(x) - aim

    step = step_of(Distilled(), HALF)
    assert step.attention == {"student": "flash", "teacher": "flash"}
    assert not any(op.phase.backward for op in step.of("teacher"))


def test_checkpointing_runs_the_kernel_again() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attention()

        def forward(self, x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    step = step_of(Checkpointed(), HALF)
    mixes = [op for op in step if op.name == "flash_attention.mix"]
    assert [op.recompute for op in mixes] == [False, True]


def test_a_step_keeps_its_forms_as_json_and_at_other_batch_sizes() -> None:
    step = step_of(nn.Sequential(Attention(), WithWeights()), HALF)
    assert step.attention == {"0": "flash", "1.attention": "eager"}
    assert Step.from_json(step.to_json()).attention == step.rebatch(5).attention == step.attention
    assert step.notes == ("attention: flash in 1 layer, eager in 1 layer (torch's choice on cuda)",)


def test_torchs_functions_are_left_as_they_were() -> None:
    before = F.scaled_dot_product_attention
    step_of(nn.TransformerEncoderLayer(32, 4, 16, batch_first=True))
    assert F.scaled_dot_product_attention is before


# ---- values on the CPU
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
def test_values_and_gradients_equal_torchs_attention(causal: bool, heads: int) -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 4, 6, 8), (2, heads, 6, 8), (2, heads, 6, 8)]
    query, key, value = (torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes)
    gradient = torch.randn(2, 4, 6, 8, generator=generator)
    wanted = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    gradients = torch.autograd.grad(wanted, (query, key, value), gradient)
    flash, back = torch.ops.aten._scaled_dot_product_flash_attention, torch.ops.aten._scaled_dot_product_flash_attention_backward
    with torch.no_grad():
        output, sums, *_, seed, offset, _ = on_cpu(flash.__name__, flash.default, (query, key, value, 0.0, causal), {})
        saved = (gradient, query, key, value, output, sums, None, None, 6, 6, 0.0, causal, seed, offset)
        ours = on_cpu(back.__name__, back.default, saved, {})
    torch.testing.assert_close(output, wanted.detach())
    for mine, theirs in zip(ours, gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_gradient_of_a_bias_equals_torchs() -> None:
    generator = torch.Generator().manual_seed(4)
    query, key, value = (torch.randn(2, 4, 6, 8, generator=generator, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 4, 6, 6, generator=generator, requires_grad=True)
    gradient = torch.randn(2, 4, 6, 8, generator=generator)
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    gradients = torch.autograd.grad(wanted, (query, key, value, bias), gradient)
    ops = torch.ops.aten
    efficient, back = ops._scaled_dot_product_efficient_attention, ops._scaled_dot_product_efficient_attention_backward
    with torch.no_grad():
        output, sums, seed, offset = on_cpu(efficient.__name__, efficient.default, (query, key, value, bias, True), {})
        saved = (gradient, query, key, value, bias, output, sums, seed, offset, 0.0, [True] * 4)
        ours = on_cpu(back.__name__, back.default, saved, {})
    torch.testing.assert_close(output, wanted.detach())
    for mine, theirs in zip(ours, gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_dropout_drops_the_same_scores_forward_and_backward() -> None:
    """With V of ones a row's output is the share that dropout keeps, and with dO of ones dV sums those shares over the rows."""
    query = key = torch.zeros(1, 1, 64, 8)
    ones = torch.ones(1, 1, 64, 8)
    flash, back = torch.ops.aten._scaled_dot_product_flash_attention, torch.ops.aten._scaled_dot_product_flash_attention_backward
    output, sums, *_, seed, offset, _ = on_cpu(flash.__name__, flash.default, (query, key, ones, 0.5), {})
    saved = (ones, query, key, ones, output, sums, None, None, 64, 64, 0.5, False, seed, offset)
    _, _, grad_value = on_cpu(back.__name__, back.default, saved, {})
    assert 0.5 < output.mean() < 1.5
    assert output[..., 0].std() > 0.05
    torch.testing.assert_close(grad_value[..., 0].sum(), output[..., 0].sum())


# ---- flex attention, causal masks, gradients of gradients
class Flex(nn.Module):
    """Flex attention with a learned number for each head, and a causal block mask."""

    def __init__(self, heads: int, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.heads, self.run = heads, run
        self.qkv, self.slope = nn.Linear(32, 16 * (4 + 2 * heads)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (-1, 16)).transpose(1, 2).split((4, self.heads, self.heads), 1)
        slope = self.slope

        def biased(score: Tensor, batch: Tensor, head: Tensor, token: Tensor, other: Tensor) -> Tensor:
            return score + slope[head] * (token - other)

        tokens = x.shape[1]
        blocks = flex.create_block_mask(lambda b, h, token, other: token >= other, None, None, tokens, tokens, device=x.device)
        return self.run(query, key, value, score_mod=biased, block_mask=blocks, enable_gqa=True)


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention_is_one_kernel_in_each_direction(heads: int, compiled: bool) -> None:
    before = flex.flex_attention_hop
    run = torch.compile(flex.flex_attention) if compiled else flex.flex_attention
    step = capture(Flex(heads, run), torch.randn(2, 256, 32), loss=loss)
    assert form(step) == "flex"
    inside = [op for op in step if op.fused is not None]
    assert len({op.fused for op in inside}) == 2
    assert sum(op.macs for op in inside) == 7 * 2 * 4 * 256 * 256 * 16
    gradient = next(op for op in inside if op.name == "flex_attention.grad_softmax").outputs[1:]
    assert [step.tensors[step.base(t)].name for t in gradient] == ["slope"]
    assert flex.flex_attention_hop is before


def test_a_mask_that_is_the_causal_one_needs_no_mask_in_the_kernel() -> None:
    """nn.Transformer recognises it by its values."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 16, dropout=0.0, batch_first=True), 1).to(HALF)
    causal, other = nn.Transformer.generate_square_subsequent_mask(TOKENS).to(HALF), torch.zeros(TOKENS, TOKENS, dtype=HALF)
    x = torch.randn(2, TOKENS, 32, dtype=HALF)
    steps = [capture(model, {"src": x, "mask": mask}, loss=loss) for mask in (causal, other)]
    assert [form(step) for step in steps] == ["flash", "efficient"]
    assert any(op.name == "causal_flash_attention.scores" for op in steps[0])


def test_gradients_of_gradients_take_separate_products_with_a_note() -> None:
    """No fused kernel has them."""

    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attention()

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.inner(x).sum(), x, create_graph=True)[0]

    step = step_of(Penalised())
    assert form(step) == "math"
    assert any("gradients of gradients" in note for note in step.notes)
