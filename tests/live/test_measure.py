"""The measured step: whose each op is, and that times add up. On the CPU every rule but the kernel clock is the same."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainyard.errors import BadInput, UnknownName
from trainyard.live.measurement.measure import Measurement, measure, observe
from trainyard.live.measurement.stopwatch import OpTime, kernel_times, median_times
from trainyard.results.result import Result


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.fc = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        maps = F.relu(self.bn(self.conv1(images)))
        maps = F.relu(self.depthwise(self.conv2(maps)))
        return self.fc(maps.mean((2, 3)))


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=False)


def observed(model: nn.Module, inputs: Tensor, targets: Tensor, **keywords: object) -> Measurement:
    options = {"loss": F.cross_entropy, "optimizer": sgd, "device": "cpu", "repeats": 2, "warmup": 1, **keywords}
    return observe(model, inputs, targets, **options)


@pytest.fixture(scope="module")
def convolutional() -> Measurement:
    torch.manual_seed(0)
    return observed(Convolutional(), torch.randn(2, 3, 16, 16), torch.randint(10, (2,)))


def test_the_host_needs_time_for_every_phase(convolutional: Measurement) -> None:
    assert set(convolutional.host_s) == {"forward", "loss", "grad_input", "update"}
    assert all(span > 0 for span in convolutional.host_s.values())


def macs(result: Result, layer: str, phase: str) -> int:
    cost = result.group("layer", "phase").get((layer, phase))
    return 0 if cost is None else cost.macs


def test_times_sum_to_the_whole_step(convolutional: Measurement) -> None:
    result = convolutional.result
    middle = sorted(convolutional.step_s)
    assert result.time_s == pytest.approx((middle[0] + middle[1]) / 2, rel=1e-9)
    assert sum(cost.time_s for cost in result.by_layer.values()) == pytest.approx(result.time_s, rel=1e-9)
    assert sum(cost.time_s for cost in result.by_phase.values()) == pytest.approx(result.time_s, rel=1e-9)
    assert set(result.by_class) == {"compute", "idle"}


def test_macs_by_layer_and_phase(convolutional: Measurement) -> None:
    result = convolutional.result
    counts = {"conv1": 2 * 8 * 256 * 27, "conv2": 2 * 16 * 64 * 72, "depthwise": 2 * 16 * 64 * 9, "fc": 2 * 10 * 16}
    for layer, count in counts.items():
        assert macs(result, layer, "forward") == count
        assert macs(result, layer, "grad_weight") == count
        assert macs(result, layer, "grad_input") == (0 if layer == "conv1" else count)


def test_every_layer_has_its_phases(convolutional: Measurement) -> None:
    groups = set(convolutional.result.group("layer", "phase"))
    assert {("bn", "forward"), ("bn", "grad_input"), ("loss", "loss"), ("loss", "grad_input")} <= groups
    for layer in ("conv1", "bn", "conv2", "depthwise", "fc"):
        assert (layer, "update") in groups
    assert ("", "update") not in groups


def test_convolution_backward_is_split_into_grad_input_and_grad_weight(convolutional: Measurement) -> None:
    actual = [(op.op.layers[0][0], op.op.phase) for op in convolutional.ops if op.op.name == "convolution_backward"]
    assert sorted(actual) == [
        ("conv1", "grad_weight"),
        ("conv2", "grad_input"),
        ("conv2", "grad_weight"),
        ("depthwise", "grad_input"),
        ("depthwise", "grad_weight"),
    ]


@pytest.mark.oracle
def test_layers_phases_and_macs_are_those_of_the_captured_step(convolutional: Measurement) -> None:
    from trainyard.workloads.capture import capture

    model = Convolutional()
    step = capture(
        model, torch.randn(2, 3, 16, 16), torch.randint(10, (2,)), loss=F.cross_entropy, optimizer=sgd(model.parameters())
    )
    captured: dict[tuple[str, str], int] = {}
    for op in step:
        key = (op.layer, str(op.phase))
        captured[key] = captured.get(key, 0) + op.macs
    measured = {key: cost.macs for key, cost in convolutional.result.group("layer", "phase").items() if key[1] != "idle"}
    assert measured == captured


class Attention(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.embed(tokens))
        query, key, value = self.qkv(hidden).chunk(3, -1)
        shares = torch.softmax(query @ key.transpose(1, 2), -1)
        return self.out(shares @ value + hidden).flatten(0, 1)


def test_attention_has_no_weight_gradient_and_linear_has_one() -> None:
    result = observed(Attention(), torch.randint(11, (2, 5)), torch.randint(11, (10,))).result
    attention = 2 * 2 * 5 * 5 * 16  # two products
    assert macs(result, "", "forward") == attention
    assert macs(result, "", "grad_input") == 2 * attention
    assert macs(result, "", "grad_weight") == 0
    linear = 2 * 5 * 16 * 48
    assert [macs(result, "qkv", phase) for phase in ("forward", "grad_input", "grad_weight")] == [linear] * 3
    groups = set(result.group("layer", "phase"))
    assert ("embed", "grad_weight") in groups
    assert ("embed", "grad_input") not in groups
    # The tied matrix is updated once, by its first name.
    assert ("embed", "update") in groups
    assert ("out", "update") not in groups


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.last = nn.Linear(8, 4)
        self.reentrant = reentrant

    def forward(self, features: Tensor) -> Tensor:
        hidden = torch.relu(self.first(features))
        return self.last(checkpoint(self.inner, hidden, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_are_recomputed_in_phase_forward(reentrant: bool) -> None:
    measurement = observed(Checkpointed(reentrant), torch.randn(4, 8), torch.randint(4, (4,)))
    again = [op.op for op in measurement.ops if op.op.recompute]
    assert {op.layers[0][0] for op in again} >= {"inner.0", "inner.1"}
    assert all(op.phase == "forward" for op in again)
    result = measurement.result
    assert macs(result, "inner.0", "forward") == 2 * 4 * 8 * 8
    assert macs(result, "inner.0", "grad_input") == macs(result, "inner.0", "grad_weight") == 4 * 8 * 8
    assert macs(result, "first", "forward") == macs(result, "first", "grad_weight") == 4 * 8 * 8


def test_frozen_layers_have_no_weight_gradient_and_no_update() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    groups = set(observed(model, torch.randn(4, 6), torch.randint(3, (4,))).result.group("layer", "phase"))
    assert ("2", "grad_input") in groups
    assert ("2", "grad_weight") not in groups
    assert ("2", "update") not in groups
    assert ("0", "grad_weight") in groups


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_one_kernel_over_many_parameters_is_shared_by_size(kind: type[torch.optim.Optimizer]) -> None:
    model = nn.Sequential(nn.Linear(10, 30, bias=False), nn.Linear(30, 2, bias=False))
    settings = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    measurement = observed(
        model, torch.randn(4, 10), torch.randint(2, (4,)), optimizer=lambda p: kind(p, lr=0.1, foreach=True, **settings)
    )
    updates = [op.op for op in measurement.ops if op.op.phase == "update" and op.op.name.startswith("_foreach")]
    full = [dict(op.layers) for op in updates if "fp32[30,10]" in op.operands]  # not the step counters
    assert len(full) >= 2
    assert all(shares == pytest.approx({"0": 300 / 360, "1": 60 / 360}) for shares in full)


def test_autocast_casts_belong_to_the_layer_and_its_weight() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    measurement = observed(model, torch.randn(4, 8), torch.randint(3, (4,)), precision="bf16-mixed")
    products = [op.op for op in measurement.ops if op.op.name in ("mm", "addmm")]
    assert all(operand.startswith("bf16") for op in products for operand in op.operands)
    assert [macs(measurement.result, "2", phase) for phase in ("forward", "grad_input", "grad_weight")] == [4 * 8 * 3] * 3
    casts = [op.op for op in measurement.ops if op.op.name == "_to_copy" and op.op.results[0].startswith("fp32[8,8]")]
    assert [op.phase for op in casts] == ["grad_weight"]


def test_a_whole_model_in_bf16() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    measurement = observed(model, torch.randn(4, 8), torch.randint(3, (4,)), precision="bf16")
    assert all("fp32" not in operand for op in measurement.ops if op.op.phase == "grad_weight" for operand in op.op.operands)
    assert next(model.parameters()).dtype == torch.float32


def test_model_and_optimizer_are_left_as_they_were() -> None:
    model = Convolutional()
    optimizer = torch.optim.Adam(model.parameters())
    F.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.tensor([1, 2])).backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    observed(model, torch.randn(2, 3, 8, 8), torch.randint(10, (2,)), optimizer=optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before[0].values(), model.state_dict().values(), strict=True))
    for old, new in zip(before[1]["state"].values(), optimizer.state_dict()["state"].values(), strict=True):
        assert all(torch.equal(old[key], new[key]) for key in old)
    assert all(torch.equal(old, p.grad) for old, p in zip(gradients, model.parameters(), strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.fc(features), labels)


def test_inputs_may_be_named_and_the_loss_the_models_own() -> None:
    inputs = {"labels": torch.tensor([0, 1, 1]), "features": torch.randn(3, 4)}
    result = measure(OwnLoss(), inputs, optimizer=sgd, device="cpu", repeats=1, warmup=0)
    assert (result.batch, macs(result, "fc", "forward"), macs(result, "fc", "grad_weight")) == (3, 24, 24)


def test_several_targets_reach_the_loss_together() -> None:
    def loss(output: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
        return ((output - pair[0]) * pair[1]).square().mean()

    targets = (torch.randn(3, 2), torch.ones(3, 2))
    result = measure(nn.Linear(4, 2), torch.randn(3, 4), targets, loss=loss, optimizer=sgd, device="cpu", repeats=1)
    assert result.by_phase["loss"].busy_s > 0


def test_a_zoo_recipe_needs_no_inputs_loss_or_optimizer() -> None:
    from trainyard.workloads import zoo

    result = measure(zoo.build("linear"), batch=4, device="cpu", repeats=1, warmup=0, name="linear")
    assert (result.workload, result.batch, result.macs) == ("linear", 4, 2 * 4 * 4096)
    assert result.to_json()
    assert result.peaks.macs_per_s > 0


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"optimizer": None}, "needs inputs and optimizer="),
        ({"loss": None}, r"the loss must be one number, got a tensor of shape \(2, 2\)"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"device": "abacus"}, "not one that torch knows"),
        ({"device": "meta"}, "works on 'cuda' and 'cpu'"),
        ({"graph": True}, "graph=True needs a CUDA device"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        observed(nn.Linear(4, 2), torch.randn(2, 4), torch.tensor([0, 1]), **keywords)
    assert "\n" not in str(caught.value)


def test_unknown_precision_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'bf16'"):
        observed(nn.Linear(4, 2), torch.randn(2, 4), torch.tensor([0, 1]), precision="bf1")


def host(name: str, start: float, length: float, number: int, category: str = "cpu_op") -> dict[str, object]:
    return {"cat": category, "name": name, "ts": start, "dur": length, "args": {"External id": number}}


def kernel(name: str, length: float, number: int | None, correlation: int) -> dict[str, object]:
    linked = {} if number is None else {"External id": number}
    return {"cat": "kernel", "name": name, "ts": 900.0, "dur": length, "args": {**linked, "correlation": correlation}}


def test_kernels_are_matched_to_ops_by_number_or_by_launch_time() -> None:
    events = [
        host("trainyard:0:0", 10, 10, 1, "user_annotation"),
        host("aten::mm", 12, 6, 2),
        host("trainyard:0:1", 30, 10, 3, "user_annotation"),
        host("aten::add", 31, 6, 4),
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 33.0, "dur": 1.0, "args": {"correlation": 71}},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 25.0, "dur": 1.0, "args": {"correlation": 72}},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 95.0, "dur": 1.0, "args": {"correlation": 73}},
        host("trainyard:1:0", 60, 10, 5, "user_annotation"),
        kernel("gemm", 5.0, 2, 70),  # linked to aten::mm, which runs inside op 0
        kernel("add", 3.0, None, 71),  # not linked: launched while op 1 ran
        kernel("seed", 1.0, None, 72),  # between two ops of a step
        kernel("after", 9.0, None, 73),  # after everything: not of any step
        {"cat": "gpu_memset", "name": "Memset", "ts": 950.0, "dur": 0.5, "args": {"External id": 5, "correlation": 80}},
        {"cat": "gpu_user_annotation", "name": "trainyard:0:0", "ts": 900.0, "dur": 50.0, "args": {"External id": 1}},
    ]
    first, second = kernel_times(events, 2)
    assert first[0] == OpTime(pytest.approx(5e-6), ("gemm",))
    assert first[1] == OpTime(pytest.approx(3e-6), ("add",))
    assert first[-1] == OpTime(pytest.approx(1e-6), ("seed",))
    assert len(first) == 3
    assert second == {0: OpTime(5e-7, ("Memset",))}


def test_kernel_times_parses_a_trace_written_by_the_profiler() -> None:
    from trainyard.live.measurement.stopwatch import PREFIX, ProfilerStopwatch

    stopwatch = ProfilerStopwatch()
    with stopwatch.profile():
        for _ in range(2):
            with stopwatch.step(), stopwatch.timer(0):
                torch.ones(4, 4) @ torch.ones(4, 4)
    assert stopwatch.times() == [{}, {}]  # no GPU, no kernels; the annotations were understood
    assert PREFIX.endswith(":")


def test_median_over_steps_leaves_out_what_happened_once() -> None:
    steps = [{0: OpTime(1.0), 1: OpTime(9.0)}, {0: OpTime(3.0)}, {0: OpTime(2.0)}]
    assert median_times(steps) == {0: OpTime(2.0)}
