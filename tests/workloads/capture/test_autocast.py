"""Autocast on a computer without CUDA: by op, by region, and without a trace afterwards."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainyard import capture
from trainyard.errors import CaptureError
from trainyard.ir import ElementWise, Phase, Role, Step
from trainyard.workloads.capture.autocast.policies import POLICIES, RECURRENT

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="torch disables autocast for cuda only without CUDA")


def cuda_region(**options: Any) -> Any:
    """A region as a script makes it before anything is captured, with torch's warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.autocast("cuda", **options)


def product_types(step: Step, *phases: Phase) -> list[tuple[str, ...]]:
    return [tuple(step.tensors[i].dtype for i in op.inputs[:2]) for op in step if op.is_product and op.phase in (phases or Phase)]


def step_of(model: nn.Module, forward: Callable[[Tensor], Tensor], *, real: bool = False, shape: tuple[int, ...] = (8,)) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train_step(batch: int) -> None:
        optimizer.zero_grad()
        forward(torch.randn(batch, *shape)).float().sum().backward()
        optimizer.step()

    return capture(train_step, model=model, batch=3, real=real)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_tables_name_every_op_that_torch_autocasts(device: str) -> None:
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device.upper()}")
    recurrent = {op for op in POLICIES["cuda"] if op.partition(".")[0] in RECURRENT}
    names = {name.removeprefix("aten::") for name in registered if name.startswith("aten::") or "::" not in name}
    assert names == POLICIES[device].keys() - recurrent


def test_the_table_of_cuda_is_that_of_torchs_header() -> None:
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    names = {"LOWER_PRECISION_FP": "lower", "FP32": "float32", "FP32_SET_OPT_DTYPE": "float32_result", "PROMOTE": "widest"}
    for macro, policy in names.items():
        body = re.search(rf"define AT_FORALL_{macro}\(_\)((?:.*\\\n)*.*)", header)
        assert body is not None
        listed = {name + (f".{overload}" if overload else "") for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])}
        table = {op for op, row in POLICIES["cuda"].items() if row == policy and not op.startswith(("cudnn", "norm."))}
        assert listed == {op for op in table if op.partition(".")[0] not in RECURRENT}


@without_cuda
@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_region_for_cuda_is_honoured_without_a_gpu_and_without_a_warning(dtype: str, real: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    element_type = torch.bfloat16 if dtype == "bf16" else torch.float16

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cuda", element_type):
            assert torch.is_autocast_enabled("cuda")
            assert torch.is_autocast_enabled()
            assert torch.get_autocast_dtype("cuda") == element_type
            y: Tensor = model(x)
        assert not torch.is_autocast_enabled("cuda")
        return y

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = step_of(model, forward, real=real)
    assert set(product_types(step)) == {(dtype, dtype)}
    norm = next(op for op in step if op.name == "native_layer_norm")
    assert {step.tensors[i].dtype for i in norm.inputs} == {"fp32"}
    assert {t.dtype for t in step.tensors if t.role in (Role.PARAMETER, Role.PARAMETER_GRADIENT, Role.STATE)} == {"fp32"}
    assert not step.notes
    assert not torch.is_autocast_enabled("cuda")


@without_cuda
def test_a_region_made_before_the_capture_counts_as_enabled_with_a_note() -> None:
    model = nn.Linear(8, 4)
    region = cuda_region(dtype=torch.bfloat16)

    def forward(x: Tensor) -> Tensor:
        with region:
            y: Tensor = model(x)
        return y

    step = step_of(model, forward)
    assert set(product_types(step)) == {("bf16", "bf16")}
    assert any("made before the capture" in note for note in step.notes)
    assert region._enabled is False


@without_cuda
def test_a_region_around_the_capture_itself_counts() -> None:
    model = nn.Linear(8, 4)
    with cuda_region(dtype=torch.bfloat16):
        step = step_of(model, model)
    assert set(product_types(step, Phase.FORWARD)) == {("bf16", "bf16")}


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    @cuda_region(dtype=torch.bfloat16)
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        with torch.autocast("cuda", enabled=False):
            y = y.float() @ self.linear.weight
            with torch.autocast("cuda", torch.float16):
                y = y @ self.linear.weight
        return y @ self.linear.weight


@without_cuda
@pytest.mark.parametrize("real", [False, True])
def test_decorators_nested_regions_and_regions_that_are_off(real: bool) -> None:
    model = Decorated()
    step = step_of(model, model, real=real)
    assert product_types(step, Phase.FORWARD) == [("bf16", "bf16"), ("fp32", "fp32"), ("fp16", "fp16"), ("bf16", "bf16")]


@without_cuda
@pytest.mark.parametrize("real", [False, True])
def test_a_region_that_is_off_for_the_device_of_a_tensor(real: bool) -> None:
    """Models switch autocast off for `x.device.type`, which is that of the capture."""
    model = nn.Linear(8, 8)

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            y: Tensor = model(x)
            with torch.autocast(y.device.type, enabled=False):
                return y.float() @ model.weight

    assert product_types(step_of(model, forward, real=real), Phase.FORWARD, Phase.LOSS) == [("bf16", "bf16"), ("fp32", "fp32")]


@without_cuda
def test_a_weight_is_cast_once_in_a_region_and_again_in_the_next() -> None:
    model = nn.Linear(8, 8, bias=False)

    def forward(x: Tensor) -> Tensor:
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16):
                x = model(model(x))
        return x

    step = step_of(model, forward)
    weights = [op for op in step if op.name == "_to_copy" and step.tensors[op.inputs[0]].role is Role.PARAMETER]
    assert len(weights) == 2

    def uncached(x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            y: Tensor = model(model(x))
        return y

    step = step_of(model, uncached)
    assert len([op for op in step if op.name == "_to_copy" and step.tensors[op.inputs[0]].role is Role.PARAMETER]) == 2


def by_op(case: Callable[[Tensor], Tensor], *, real: bool) -> list[tuple[Any, ...]]:
    weight = nn.Linear(4, 4, bias=False)

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return case(weight(x))

    step = step_of(weight, forward, real=real, shape=(4,))
    forward_ops = [op for op in step if op.phase in (Phase.FORWARD, Phase.LOSS) and op.name not in ("randn", "_to_copy", "clone")]
    return [(op.name, *[step.tensors[i].dtype for i in (*op.inputs, *op.outputs)]) for op in forward_ops]


# fmt: off
CASES: dict[str, tuple[Callable[[Tensor], Tensor], str, tuple[str, ...]]] = {
    # a bf16 tensor goes in; the op that decides, with the element types of its inputs and outputs
    "softmax":   (lambda x: x.softmax(-1),                              "_softmax",           ("fp32", "fp32")),
    "sum":       (lambda x: x.sum(-1),                                  "sum",                ("bf16", "fp32")),
    "sum fp16":  (lambda x: x.sum(-1, dtype=torch.float16),             "sum",                ("bf16", "fp16")),
    "norm":      (lambda x: x.norm(dim=-1),                             "linalg_vector_norm", ("bf16", "fp32")),
    "pow":       (lambda x: x**3,                                       "pow",                ("fp32", "fp32")),
    "relu":      (lambda x: x.relu(),                                   "relu",               ("bf16", "bf16")),
    "mean":      (lambda x: x.mean(-1),                                 "mean",               ("bf16", "bf16")),
    "addcmul":   (lambda x: torch.addcmul(x, x, x.float()),             "addcmul",            ("fp32",) * 4),
    "addcmul h": (lambda x: torch.addcmul(x, x, x),                     "addcmul",            ("bf16",) * 4),
    "cat":       (lambda x: torch.cat([x, x.float()]),                  "cat",                ("bf16", "fp32", "fp32")),
    "einsum":    (lambda x: torch.einsum("ij,kj->ik", x.float(), x.float()), "bmm",           ("bf16", "bf16", "bf16")),
    "tensordot": (lambda x: torch.tensordot(x, x.float().t(), 1),       "mm",                 ("fp32", "fp32", "fp32")),
    "mse_loss":  (lambda x: F.mse_loss(x, torch.zeros_like(x)),         "mse_loss",           ("fp32", "fp32", "fp32")),
    "normalize": (lambda x: F.normalize(x),                             "linalg_vector_norm", ("bf16", "fp32")),
    "conv":      (lambda x: F.conv1d(x[None].float(), x[None].float().transpose(0, 1)[:1].expand(1, x.shape[0], 4)), "convolution",
                                                                                              ("bf16", "bf16", "bf16")),
}
# fmt: on


@without_cuda
@pytest.mark.parametrize("name", CASES)
def test_ops_have_their_types_with_and_without_values(name: str) -> None:
    case, op, types = CASES[name]
    on_shapes = by_op(case, real=False)
    assert [row[1:] for row in on_shapes[:-1] if row[0] == op][-1] == types
    assert on_shapes == by_op(case, real=True)


@without_cuda
def test_binary_cross_entropy_is_refused_as_on_a_gpu() -> None:
    with pytest.raises(CaptureError, match="binary_cross_entropy_with_logits"):
        by_op(lambda x: F.binary_cross_entropy(x.sigmoid(), torch.zeros_like(x)), real=False)


@without_cuda
@pytest.mark.parametrize("real", [False, True])
def test_recurrent_layers_and_attention_run_in_the_lower_precision(real: bool) -> None:
    for layer in (nn.LSTM(8, 8, batch_first=True), nn.GRU(8, 8, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)):

        def forward(x: Tensor, layer: nn.Module = layer) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                y: Tensor = (layer(x, x, x) if isinstance(layer, nn.MultiheadAttention) else layer(x))[0]
            return y

        step = step_of(layer, forward, real=real, shape=(5, 8))
        assert set(product_types(step)) == {("bf16", "bf16")}


class Scaled(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        assert not torch.is_autocast_enabled("cuda")
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


@without_cuda
@pytest.mark.parametrize("real", [False, True])
def test_custom_functions_choose_their_own_type(real: bool) -> None:
    model = nn.Linear(8, 8, bias=False)

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            y: Tensor = Scaled.apply(model(x), model.weight)
        return y

    step = step_of(model, forward, real=real)
    assert product_types(step, Phase.FORWARD, Phase.LOSS) == [("bf16", "bf16"), ("fp32", "fp32")]


@without_cuda
@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_recomputes_in_the_precision_of_its_forward(reentrant: bool, real: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)))

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            y: Tensor = checkpoint(model[1], model[0](x), use_reentrant=reentrant)
        return y

    step = step_of(model, forward, real=real)
    assert any(op.recompute for op in step if op.is_product)
    assert set(product_types(step)) == {("bf16", "bf16")}


@without_cuda
def test_the_old_spelling_and_a_disabled_region_inside_it() -> None:
    model = nn.Linear(8, 8)

    def forward(x: Tensor) -> Tensor:
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):
            y: Tensor = model(x)
            with torch.cuda.amp.autocast(enabled=False):
                return y.float() @ model.weight

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        step = step_of(model, forward)
    assert product_types(step, Phase.FORWARD, Phase.LOSS) == [("bf16", "bf16"), ("fp32", "fp32")]


@without_cuda
def test_nothing_remains_after_a_capture_that_failed_inside_a_region() -> None:
    import torch.amp.autocast_mode as autocast_mode

    before = {(owner.__name__, name): value for owner in WATCHED for name, value in vars(owner).items() if callable(value)}
    model = nn.Linear(8, 8)

    def forward(x: Tensor) -> Tensor:
        torch.cuda.synchronize()
        with torch.autocast("cuda", torch.bfloat16):
            model(x)
            raise RuntimeError("stop")

    with pytest.raises(CaptureError, match="stop"):
        step_of(model, forward)
    after = {(owner.__name__, name): value for owner in WATCHED for name, value in vars(owner).items() if callable(value)}
    assert before == after
    assert not torch._C._dispatch_get_registrations_for_dispatch_key("AutocastIPU")
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not autocast_mode.autocast("cuda")._enabled
    assert len(caught) == 1


WATCHED = (torch, torch.cuda, torch.cuda.nvtx, torch.amp, torch.autocast, torch.amp.autocast_mode, torch.amp.GradScaler)


@without_cuda
@pytest.mark.parametrize("real", [False, True])
def test_a_scalers_work_is_in_the_step(real: bool) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        early = torch.amp.GradScaler("cuda")

    def train_step(batch: int, made_before: bool = True) -> None:
        scaler = early if made_before else torch.amp.GradScaler("cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(batch, 8)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    steps = [capture(train_step, model=model, batch=3, real=real)]
    steps.append(capture(lambda batch: train_step(batch, made_before=False), model=model, batch=3, real=real))
    for step in steps:
        names = [op.name for op in step if op.phase is Phase.UPDATE]
        assert names.count("adam") == 2
        (unscale,) = [op.body for op in step if op.name == "_amp_foreach_non_finite_check_and_unscale_"]
        assert isinstance(unscale, ElementWise)
        assert (unscale.elements, unscale.operations) == (8 * 8 + 8, 2)  # a product and a comparison
        assert "_amp_update_scale_" in names
    assert any("GradScaler" in note for note in steps[0].notes)
    assert not steps[1].notes
    assert vars(early) == {"_device": "cuda", "_enabled": False}


@without_cuda
def test_a_scaler_that_is_not_needed_stays_off() -> None:
    """In bf16 scripts make their scaler with enabled=False, which looks like one that torch has disabled."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=False)

    def train_step(batch: int) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(batch, 8)).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    step = capture(train_step, model=model, batch=3)
    assert not any(op.name.startswith("_amp") for op in step)
    assert any(op.name == "sgd" for op in step)


@without_cuda
def test_calls_of_torch_cuda_beside_the_step_do_nothing() -> None:
    model = nn.Linear(8, 8)

    def forward(x: Tensor) -> Tensor:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.cuda.manual_seed_all(1)
        torch.cuda.reset_peak_memory_stats()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y: Tensor = model(x)
        torch.cuda.nvtx.range_push("loss")
        end.record()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert start.elapsed_time(end) + torch.cuda.max_memory_allocated() + torch.cuda.current_device() == 0
        assert not torch.cuda.is_available()
        return y

    queued = len(torch.cuda._queued_calls)
    assert len(product_types(step_of(model, forward))) == 2
    assert len(torch.cuda._queued_calls) == queued


@without_cuda
def test_autocast_for_the_cpu_on_shapes_is_that_of_torch_with_values() -> None:
    """With values torch itself casts; on shapes the table does."""
    model = nn.Sequential(
        nn.Conv1d(3, 4, 3, padding="same"), nn.ReflectionPad1d(1), nn.AvgPool1d(2), nn.Flatten(), nn.LazyLinear(4)
    )
    model(torch.zeros(1, 3, 8))

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
            return F.cross_entropy(torch.cat([y, y.float()], 1) @ torch.ones(8, 8), torch.zeros(len(x), dtype=torch.long))

    def types(real: bool) -> list[Any]:
        step = step_of(model, forward, real=real, shape=(3, 8))
        kept = [
            op for op in step if op.name in ("convolution", "reflection_pad1d", "avg_pool2d", "addmm", "cat", "mm", "_log_softmax")
        ]
        return [(op.name, op.phase, *[step.tensors[i].dtype for i in (*op.inputs, *op.outputs)]) for op in kept]

    assert types(real=False) == types(real=True) != []
