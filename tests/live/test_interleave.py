"""interleave(model): the same losses, the same model in every other respect; what is changed, what is left alone and why."""

from __future__ import annotations

import copy
import io
import pickle
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm
from torch.utils.checkpoint import checkpoint

import trainyard as ty
from trainyard.errors import BadInput, UnknownName
from trainyard.live.gradient import Interleaved, interleave, kernels, report, restore


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Lora(nn.Module):
    """A frozen layer and its low-rank correction, as adapters have it: base(x) + B(A(x))."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.lora_B.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.lora_B(self.lora_A(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A transformer block whose projections carry LoRA."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.query, self.key, self.value = (Lora(nn.Linear(width, width), 4) for _ in range(3))
        self.mix = nn.Sequential(Lora(nn.Linear(width, 32), 4), nn.GELU(), Lora(nn.Linear(32, width), 4))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norms[0](x)
        x = x + F.scaled_dot_product_attention(self.query(normed), self.key(normed), self.value(normed))
        return x + self.mix(self.norms[1](x))  # type: ignore[no-any-return]


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 24, 1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 4 * 4, 5),
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))


def transformer() -> nn.Module:
    return nn.Sequential(nn.Flatten(2), nn.Linear(64, 16), Block(), Block(), nn.Flatten(), nn.Linear(48, 5))


MODELS = {"cnn": cnn, "mlp": mlp, "transformer with LoRA": transformer}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
}


def batch(device: str = "cpu", samples: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs, labels = torch.randn(samples, 3, 8, 8, generator=generator), torch.randint(5, (samples,), generator=generator)
    return inputs.to(device), labels.to(device)


def losses(
    model: nn.Module,
    optimizer: Callable[..., torch.optim.Optimizer] = OPTIMIZERS["AdamW"],
    *,
    steps: int = 20,
    cast: torch.dtype | None = None,
) -> list[float]:
    device = next(model.parameters()).device.type
    inputs, labels = batch(device)
    chosen, actual = optimizer([p for p in model.parameters() if p.requires_grad]), []
    for _ in range(steps):
        chosen.zero_grad()
        with torch.autocast(device, cast or torch.bfloat16, enabled=cast is not None):
            loss = F.cross_entropy(model(inputs).float(), labels)
        loss.backward()
        chosen.step()
        actual.append(loss.item())
    return actual


def build(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name]()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_training_goes_on_with_the_same_losses(name: str, optimizer: str) -> None:
    plain = losses(build(name), OPTIMIZERS[optimizer])
    model = interleave(build(name))
    actual = losses(model, OPTIMIZERS[optimizer])
    assert plain[-1] < 0.8 * plain[0]
    assert actual == pytest.approx(plain, rel=2e-4)
    assert "dY read once, in plain PyTorch" in str(report(model))


@pytest.mark.parametrize("name", MODELS)
def test_losses_under_autocast(name: str) -> None:
    plain, actual = losses(build(name), cast=torch.bfloat16), losses(interleave(build(name)), cast=torch.bfloat16)
    assert actual == pytest.approx(plain, rel=0.05)
    assert actual[0] == plain[0]


def test_nothing_but_the_class_of_the_layers_changes() -> None:
    model = build("cnn")
    parameters, keys, hooked = dict(model.named_parameters()), list(model.state_dict()), []
    model[3].register_forward_pre_hook(lambda *_: hooked.append("before"))
    model[3].register_forward_hook(lambda *_: hooked.append("after"))
    model[3].register_full_backward_hook(lambda *_: hooked.append("backward"))
    parameters["3.weight"].register_post_accumulate_grad_hook(lambda *_: hooked.append("gradient"))
    assert interleave(model) is model
    assert all(one is other for one, other in zip(model.parameters(), parameters.values(), strict=True))
    assert list(model.state_dict()) == keys
    assert isinstance(model[3], nn.Conv2d)
    assert isinstance(model[9], nn.Linear)
    losses(model, steps=1)
    assert hooked == ["before", "after", "gradient", "backward"]
    restore(model)
    assert [type(module) for module in model.modules()] == [type(module) for module in build("cnn").modules()]
    assert not [key for module in model.modules() for key in vars(module) if "interleave" in key]
    assert report(model).interleaved == ()


def test_inplace_false_changes_a_copy() -> None:
    model = build("mlp")
    changed = interleave(model, inplace=False)
    assert len(report(changed).interleaved) == 3
    assert report(model).interleaved == ()


class Scaled(nn.Linear):
    """A subclass that adds something but leaves forward alone."""

    scale = 3.0

    def extra_repr(self) -> str:
        return "scaled"


class OwnForward(nn.Linear):
    """A subclass whose forward is not nn.Linear's."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def through_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))  # type: ignore[no-any-return]


def through_a_file(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, through_pickle, through_a_file])
def test_copies_and_files_stay_interleaved(copied: Callable[[nn.Module], nn.Module]) -> None:
    model = interleave(
        nn.Sequential(nn.Linear(3, 4), Scaled(4, 4), nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 2, 1)), kernel="reference"
    )
    other = copied(model)
    x = torch.randn(5, 3, requires_grad=True)
    assert torch.equal(other(x), model(x))
    assert report(other).interleaved == ("0", "1", "3")
    for one, two in zip(model, other, strict=True):
        assert type(one) is type(two)
    assert other[1].interleave_setting.kernel == "reference"
    assert isinstance(other[1], Scaled)
    assert (other[1].extra_repr(), other[1].scale) == ("scaled", 3.0)
    if copied is not copy.copy:
        restore(other)
        assert type(other[1]) is Scaled
        assert isinstance(model[1], Interleaved)


def test_state_dicts_load_between_plain_and_interleaved_models() -> None:
    plain, changed = build("cnn"), interleave(build("cnn"))
    losses(changed, steps=2)
    plain.load_state_dict(changed.state_dict())
    inputs, _ = batch()
    assert torch.equal(plain.eval()(inputs), changed.eval()(inputs))
    changed.load_state_dict(build("cnn").state_dict())


def test_layers_that_are_left_alone_are_named_with_the_reason() -> None:
    model = nn.Module()
    model.good = nn.Linear(4, 4)
    model.own = OwnForward(4, 4)
    model.parametrized = parametrizations.orthogonal(nn.Linear(4, 4))
    with pytest.warns(FutureWarning):
        model.hooked = weight_norm(nn.Linear(4, 4))
    model.lazy = nn.LazyLinear(4)
    model.patched = nn.Linear(4, 4)
    model.patched.forward = lambda x: x  # type: ignore[method-assign]
    model.attention = nn.MultiheadAttention(4, 2)
    model.window, model.grouped, model.padded = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 4, 1, padding=1)
    model.same, model.dilated = nn.Conv2d(4, 4, 1, padding="same"), nn.Conv2d(4, 4, 1, dilation=3)
    model.sequence, model.up = nn.Conv1d(4, 4, 1), nn.ConvTranspose2d(4, 4, 1)
    model.whole = nn.Linear(4, 4)
    model.whole.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    actual = report(interleave(model))
    assert actual.interleaved == ("good", "same", "dilated")
    words = {
        "own": "forward of its own", "parametrized": "parametrized", "hooked": "not a parameter", "lazy": "run one batch first",
        "patched": "replaced on the instance", "attention.out_proj": "without calling it", "window": "3x3", "grouped": "2 groups",
        "padded": "pads", "sequence": "neither an nn.Linear", "up": "neither an nn.Linear", "whole": "quantized (int8)",
    }  # fmt: skip
    for name, word in words.items():
        assert word in actual.left_alone[name]
    assert set(actual.left_alone) == set(words)
    table = str(actual).splitlines()
    assert table[0] == "3 of 15 layers interleaved"
    assert table[1].split() == ["good", "Linear", "4", "->", "4", "interleaved", "not", "run", "yet"]


def test_quantized_layers_are_left_alone() -> None:
    quantized = torch.ao.nn.quantized.dynamic.Linear(4, 4)
    actual = report(interleave(nn.Sequential(nn.Linear(4, 4), quantized)))
    assert actual.interleaved == ("0",)
    assert actual.left_alone == {"1": "neither an nn.Linear nor an nn.Conv2d"}


def test_a_model_without_matching_layers_raises() -> None:
    with pytest.raises(
        BadInput,
        match=r"nothing to interleave in Sequential: looked for nn.Linear, .* a 1x1 .*'0': its kernel is 3x3",
    ):
        interleave(nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU()))
    with pytest.raises(BadInput, match=r"takes an nn.Module, not function"):
        interleave(lambda x: x)  # type: ignore[type-var]
    with pytest.raises(UnknownName, match="unknown kernel 'fast'"):
        interleave(nn.Linear(2, 2), kernel="fast")


def test_interleaving_a_single_layer_twice_changes_it_once() -> None:
    layer = interleave(nn.Linear(3, 4))
    interleave(layer, kernel="pair")
    assert layer.interleave_setting.kernel == "pair"  # type: ignore[union-attr]
    assert layer.interleaved_from is nn.Linear  # type: ignore[union-attr]
    assert report(layer).interleaved == ("(the model)",)
    layer(torch.randn(2, 3, requires_grad=True))
    assert "torch's own backward pass" in str(report(layer))


def test_a_layer_changed_again_afterwards_cannot_be_restored() -> None:
    model = nn.Sequential(interleave(nn.Linear(4, 4)))
    parametrizations.orthogonal(model[0])
    model(torch.randn(2, 4)).sum().backward()
    with pytest.raises(BadInput, match="layer '0' became a ParametrizedInterleavedLinear"):
        restore(model)


def gradients_of(model: nn.Module, run: Callable[[nn.Module, Tensor], Tensor] = lambda model, x: model(x)) -> list[Tensor | None]:
    inputs, labels = batch()
    inputs.requires_grad_()
    for part in (0, 1):  # accumulated over two backward passes
        F.cross_entropy(run(model, inputs)[part::2], labels[part::2]).backward()
    return [inputs.grad, *(parameter.grad for parameter in model.parameters())]


def same(actual: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_checkpoints_and_accumulated_gradients(name: str, reentrant: bool) -> None:
    actual = gradients_of(interleave(build(name)), lambda model, x: checkpoint(model, x, use_reentrant=reentrant))  # type: ignore[no-any-return]
    same(actual, gradients_of(build(name)))


def test_frozen_weights_get_no_gradient() -> None:
    frozen = []
    for make in (build, lambda name: interleave(build(name))):
        model = make("mlp")
        model[3].weight.requires_grad_(False)
        model[5].bias.requires_grad_(False)
        frozen.append(gradients_of(model))
    same(*frozen)
    assert frozen[1][3] is None


def test_tied_weights_gather_both_gradients() -> None:
    def tied() -> nn.Module:
        model = build("mlp")
        model[3] = nn.Linear(32, 32)
        model.insert(4, nn.Linear(32, 32))
        model[4].weight = model[3].weight
        return model

    torch.manual_seed(2)
    model = tied()
    expected = gradients_of(copy.deepcopy(model))
    changed = interleave(model)
    assert changed[3].weight is changed[4].weight
    same(gradients_of(changed), expected)


@pytest.mark.parametrize("backend", ["aot_eager", *(pytest.param(b, marks=pytest.mark.slow) for b in ("eager", "inductor"))])
@pytest.mark.parametrize("name", MODELS)
def test_compiles_without_a_graph_break(name: str, backend: str) -> None:
    torch._dynamo.reset()
    model = interleave(build(name))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    same(gradients_of(model, lambda _, x: compiled(x)), gradients_of(build(name)))


def test_compiles_under_autocast() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(interleave(build("mlp")), backend="aot_eager", fullgraph=True)
    assert losses(compiled, steps=5, cast=torch.bfloat16) == pytest.approx(
        losses(build("mlp"), steps=5, cast=torch.bfloat16), rel=0.02
    )


def test_exported_and_traced_models_contain_no_trainyard_op() -> None:
    model, inputs = interleave(build("cnn")).eval(), batch()[0]
    exported = torch.export.export(model, (inputs,))
    assert "trainyard" not in str(exported.graph)
    torch.testing.assert_close(exported.module()(inputs), model(inputs))
    traced = torch.jit.trace(model, inputs)
    assert "PythonOp" not in str(traced.inlined_graph)


def test_captured_as_the_same_step() -> None:
    inputs, labels = batch()
    steps: list[Any] = [
        ty.capture(model, inputs, labels, loss=F.cross_entropy) for model in (build("cnn"), interleave(build("cnn")))
    ]
    assert [str(op) for op in steps[0].ops] == [str(op) for op in steps[1].ops]


def test_names_resolve_without_a_heavy_import() -> None:
    code = (
        "import sys, trainyard as ty; ty.live; assert 'torch' not in sys.modules; "
        "assert callable(ty.live.interleave) and ty.live.gradient.report; assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ty.live.nothing  # noqa: B018
    assert set(dir(ty.live)) >= {"gradient", "interleave", "restore"}


def test_the_example_prints_equal_losses(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "interleave.py"), run_name="__main__")
    table, losses = capsys.readouterr().out.split("\n\n")[:2]
    assert table.startswith("7 of 8 layers interleaved")
    rows = [[float(cell) for cell in line.split()] for line in losses.splitlines()[1:]]
    assert len(rows) == 5
    assert all(one == pytest.approx(other, rel=0.02) for _, one, other in rows)
    assert rows[-1][1] < 0.8 * rows[0][1]


# --- on a GPU: self-contained, nothing but torch and triton

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def on_gpu(name: str, **options: Any) -> nn.Module:
    model = build(name).to(
        "cuda", memory_format=torch.channels_last if options.pop("channels_last", False) else torch.contiguous_format
    )
    return interleave(model, **options) if options else model


class OnGpu(nn.Parameter):
    """A weight that says it lies on a GPU."""

    device = property(lambda self: torch.device("cuda"))


def test_the_report_names_a_gpu_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model = interleave(nn.Linear(3, 4))
    model.weight = OnGpu(torch.randn(4, 3))
    monkeypatch.setattr(kernels, "available", lambda device: False)
    assert "pip install 'trainyard[triton]'" in str(report(model))
    monkeypatch.setattr(kernels, "available", lambda device: True)
    assert "triton" not in str(report(model))


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("kernel", ["auto", "fused"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_same_losses_on_a_gpu(name: str, channels_last: bool, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # the layers that are left to it
    plain = losses(on_gpu(name, channels_last=channels_last))
    model = on_gpu(name, channels_last=channels_last, kernel=kernel, deterministic=True)
    assert losses(model) == pytest.approx(plain, rel=1e-3)
    assert kernel == "auto" or "dY read once" in str(report(model))
    assert losses(on_gpu(name, kernel=kernel, deterministic=True)) == losses(on_gpu(name, kernel=kernel, deterministic=True))
    for cast in (torch.bfloat16, torch.float16):
        plain, actual = losses(on_gpu(name), cast=cast), losses(on_gpu(name, kernel=kernel), cast=cast)
        assert actual == pytest.approx(plain, rel=0.05)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("kernel", ["auto", "fused"])
@pytest.mark.parametrize("name", MODELS)
def test_compiles_on_a_gpu(name: str, kernel: str, mode: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch._dynamo.reset()
    compiled = torch.compile(on_gpu(name, kernel=kernel), fullgraph=True, mode=mode)
    assert losses(compiled) == pytest.approx(losses(on_gpu(name)), rel=1e-3)


def test_what_a_step_gains_at_most_is_said_before_anything_is_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, h200, seen = build("cnn"), ty.machine("h200"), []
    works = type(h200).works

    def watched(self: Any, step: Any) -> Any:
        seen.append(report(model).interleaved)
        return works(self, step)

    monkeypatch.setattr(type(h200), "works", watched)
    assert interleave(model, inputs=torch.randn(2, 3, 8, 8), on=h200, force=True) is model
    said = capsys.readouterr().out
    assert "could read dY once" in said
    assert "times as fast" in said
    assert seen
    assert not any(seen)
    assert report(model).interleaved


def test_a_model_that_can_gain_less_than_two_per_cent_is_left_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch, h200 = build("cnn"), torch.randn(2, 3, 8, 8), ty.machine("h200")
    assert interleave(model, inputs=batch, on=h200) is model
    assert not report(model).interleaved
    assert "too little" in capsys.readouterr().out
    copied = interleave(model, inputs=batch, on=h200, inplace=False)
    assert copied is not model
    assert not report(copied).interleaved
    capsys.readouterr()
    monkeypatch.setitem(interleave.__globals__, "WORTH_CHANGING", 1.0)
    assert report(interleave(model, inputs=batch, on=h200)).interleaved
    assert "too little" not in capsys.readouterr().out


@pytest.mark.parametrize("given", [{"inputs": torch.ones(1)}, {"on": object()}])
def test_a_batch_without_a_device_says_what_is_missing(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"both inputs= and on="):
        interleave(build("cnn"), **given)
