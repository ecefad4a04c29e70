"""Layers, calls, phases, letters, roles and versions of what was captured."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.prune import l1_unstructured
from torch.utils.checkpoint import checkpoint

from trainyard.ir import Op, Phase, Reduction, Role, Step
from trainyard.workloads.capture import capture


def mlp(*widths: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(widths)])


def total(output: torch.Tensor) -> torch.Tensor:
    return output.sum()


def products(step: Step, layer: str | None = None) -> list[tuple[Phase, tuple[str, ...]]]:
    return [(op.phase, op.letters) for op in step if op.is_product and layer in (None, op.layer)]


FORWARD = (Phase.FORWARD, ("A", "W"))
INPUT = (Phase.GRAD_INPUT, ("G", "W"))
WEIGHT = (Phase.GRAD_WEIGHT, ("G", "A"))


def test_the_first_layer_has_no_input_gradient() -> None:
    step = capture(mlp(5, 6, 7), torch.randn(3, 5), loss=total)
    assert products(step, "0") == [FORWARD, WEIGHT]
    assert products(step, "1") == [FORWARD, INPUT, WEIGHT]


def test_an_input_that_wants_its_gradient_gets_it() -> None:
    step = capture(mlp(5, 6), torch.randn(3, 5, requires_grad=True), loss=total)
    assert products(step, "0") == [FORWARD, INPUT, WEIGHT]


def test_a_frozen_layer_has_no_weight_gradient_and_nothing_below_it_a_gradient() -> None:
    model = mlp(5, 6, 7, 8)
    for frozen in (0, 1):
        model[frozen].requires_grad_(False)
    step = capture(model, torch.randn(3, 5), loss=total, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert products(step, "0") == products(step, "1") == [FORWARD]
    assert products(step, "2") == [FORWARD, WEIGHT]
    assert {op.layer for op in step.only(Phase.UPDATE)} == {"2"}
    model[0].requires_grad_(True)
    step = capture(model, torch.randn(3, 5), loss=total)
    assert products(step, "1") == [FORWARD, INPUT]


def test_a_shared_layer_counts_its_calls_and_adds_its_gradients() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x).relu())

    step = capture(Twice(), torch.randn(3, 6), loss=total, optimizer=None)
    assert [(op.call, op.phase) for op in step if op.is_product] == [
        (0, Phase.FORWARD), (1, Phase.FORWARD), (1, Phase.GRAD_INPUT), (1, Phase.GRAD_WEIGHT), (0, Phase.GRAD_WEIGHT),
    ]  # fmt: skip
    sums = [op for op in step if op.name in ("add", "add_") and op.phase is Phase.GRAD_WEIGHT]
    assert sorted(op.body.elements for op in sums) == [6, 36]
    assert step.parameters == 42


def test_tied_embeddings_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 20, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.words(tokens))

    model = Tied()
    step = capture(model, torch.randint(0, 20, (3, 4)), loss=total, optimizer=torch.optim.Adam(model.parameters()))
    assert step.parameters == 120
    assert sorted(products(step, "head")) == sorted([FORWARD, INPUT, WEIGHT])
    (update,) = step.only(Phase.UPDATE)
    assert update.layer == "words"
    assert [step.tensors[t].role for t in update.inputs] == [Role.PARAMETER, Role.PARAMETER_GRADIENT, Role.STATE, Role.STATE]


class Blocks(nn.Module):
    def __init__(self, reentrant: bool, blocks: int = 3) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6), nn.Sigmoid()) for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_segments_are_recomputed(reentrant: bool) -> None:
    step = capture(Blocks(reentrant), torch.randn(4, 6), loss=total)
    segment = 3 * 2 * 4 * 6 * 12
    again = [op for op in step if op.recompute]
    assert sum(op.macs for op in again) == segment
    assert {op.phase for op in again} == {Phase.FORWARD}
    assert all(op.letters == ("A", "W") for op in again if op.is_product)
    plain = [op for op in step if not op.recompute]
    assert sum(op.macs for op in plain if op.phase is Phase.FORWARD) == segment + 4 * 36
    assert sum(op.macs for op in plain if op.phase is Phase.GRAD_INPUT) == segment
    assert sum(op.macs for op in plain if op.phase is Phase.GRAD_WEIGHT) == segment + 4 * 36
    assert products(step, "blocks.1.0") == [FORWARD, FORWARD, INPUT, WEIGHT]
    assert step.rebatchable


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_calls_of_a_shared_block_keep_their_index(reentrant: bool) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.block = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.before(x)
            for _ in range(3):
                x = checkpoint(self.block, x, use_reentrant=reentrant).mul(2)
            return x

    step = capture(Loop(), torch.randn(4, 6), loss=total)
    calls = [(op.recompute, op.call) for op in step if op.layer == "block.0" and op.is_product and op.phase is Phase.FORWARD]
    assert calls == [(False, 0), (False, 1), (False, 2), (True, 2), (True, 1), (True, 0)]


class Head(nn.Module):
    """Attention written out, with a mask made on the fly and a parameter used without a module."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mix = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("scale", torch.tensor([0.3] * 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = self.query(x) @ (self.key(x) * self.scale).transpose(1, 2)
        return scores.masked_fill(~mask, -1e9).softmax(-1) @ (x @ self.mix)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.norm, self.out = nn.Linear(8, 8), Head(), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.out(F.gelu(self.norm(self.head(x) + x)))


def net(**options: object) -> Step:
    return capture(
        Net(), torch.randn(3, 5, 8), torch.randint(0, 4, (15,)), loss=lambda y, t: F.cross_entropy(y.flatten(0, 1), t), **options
    )  # type: ignore[arg-type]


def test_attention_products_have_no_letters_and_give_input_gradients() -> None:
    plain = ((Phase.FORWARD, ("", "")), (Phase.GRAD_INPUT, ("", "")))
    actual = [row for row in products(net(), "head") if row in plain]
    assert actual.count(plain[0]) == 2
    assert actual.count(plain[1]) == 4
    others = [row for row in products(net(), "head") if row not in plain]
    assert sorted(others) == sorted([FORWARD, INPUT, (Phase.GRAD_WEIGHT, ("A", "G"))])  # x @ mix: the input's transpose comes first


def test_backward_ops_carry_the_layer_of_their_forward() -> None:
    step = net()
    layers = {op.layer for op in step if op.phase.backward}
    assert layers == {"loss", "out", "", "norm", "head", "head.query", "head.key", "stem"}
    assert {op.layer for op in step.only(Phase.LOSS)} == {"loss"}
    gelu = [op for op in step if op.name.startswith("gelu")]
    assert [(op.layer, op.phase) for op in gelu] == [("", Phase.FORWARD), ("", Phase.GRAD_INPUT)]


def test_bias_gradients_belong_to_the_weight_phase() -> None:
    step = net()
    sums = [op for op in step if isinstance(op.body, Reduction) and op.body.function == "sum"]
    assert {(op.layer, op.phase) for op in sums} == {
        (layer, Phase.GRAD_WEIGHT) for layer in ("out", "head.query", "head.key", "stem")
    }


def test_roles_and_names() -> None:
    step = net()
    by_role = {role: {t.name for t in step.tensors if t.view_of is None and t.role is role} for role in Role}
    names = {"stem.weight", "stem.bias", "head.mix", "head.query.weight", "head.query.bias", "head.key.weight", "head.key.bias",
             "norm.weight", "norm.bias", "out.weight", "out.bias"}  # fmt: skip
    assert by_role[Role.PARAMETER] == by_role[Role.PARAMETER_GRADIENT] == names
    assert by_role[Role.BUFFER] == {"head.scale"}
    assert by_role[Role.INPUT] == {"input"}
    assert by_role[Role.TARGET] == {"target"}
    assert by_role[Role.STATE] == set()
    gradients = [t for t in step.tensors if t.view_of is None and t.role is Role.PARAMETER_GRADIENT]
    parameters = {t.name: t.elements for t in step.tensors if t.view_of is None and t.role is Role.PARAMETER}
    assert all(t.elements == parameters[t.name] for t in gradients)


def test_every_read_tensor_was_written_or_came_from_outside() -> None:
    step = net()
    written = {step.base(t) for op in step for t in op.outputs}
    outside = (Role.PARAMETER, Role.BUFFER, Role.INPUT, Role.TARGET)
    for op in step:
        for tensor in op.inputs:
            base = step.base(tensor)
            seed = step.tensors[base].role is Role.GRADIENT and step.tensors[base].shape == ()
            assert base in written or step.tensors[base].role in outside or seed, (op, step.tensors[base])


def test_dependencies_follow_the_data() -> None:
    step = capture(mlp(5, 6, 7), torch.randn(3, 5), loss=total, optimizer=None)
    number: dict[tuple[str, Phase, bool], int] = {(op.layer, op.phase, op.is_product): i for i, op in enumerate(step.ops)}
    second = number["1", Phase.FORWARD, True]
    assert step.dependencies[second] == (number["0", Phase.FORWARD, True],)
    assert number["0", Phase.FORWARD, True] in step.dependencies[number["1", Phase.GRAD_WEIGHT, True]]


def test_in_place_ops_make_a_new_version_of_the_same_memory() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    step = capture(model, torch.randn(3, 4), loss=total)
    (relu,) = (op for op in step if op.name == "relu_")
    assert relu.inputs != relu.outputs
    assert step.base(relu.inputs[0]) == step.base(relu.outputs[0])
    later = next(op for op in step if op.layer == "2")
    assert later.inputs[0] == relu.outputs[0]


def test_slices_and_transposes_are_views() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left, right = self.layer(x).chunk(2, dim=1)
            return left * right

    step = capture(Halves(), torch.randn(3, 4), loss=total)
    (product,) = (op for op in step if op.name == "mul" and op.phase is Phase.FORWARD)
    assert {step.tensors[t].view_of for t in product.inputs} == set(step.ops[0].outputs)
    assert all(step.tensors[t].shape == (3, 3) for t in product.inputs)


def updates(step: Step) -> list[Op]:
    return [op for op in step if op.phase is Phase.UPDATE]


@pytest.mark.parametrize(
    ("build", "states"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), 0),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1), 1),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3),
        (lambda p: torch.optim.Adam(p, foreach=True), 2),
        (lambda p: torch.optim.Adagrad(p), 1),
        (lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5), 3),
    ],
)
def test_one_update_for_each_parameter(build: object, states: int) -> None:
    model = mlp(5, 6, 7)
    step = capture(model, torch.randn(3, 5), loss=total, optimizer=build(model.parameters()))  # type: ignore[operator]
    actual = updates(step)
    assert [(op.layer, op.body.elements) for op in actual] == [("0", 30), ("0", 6), ("1", 42), ("1", 7)]  # type: ignore[union-attr]
    for op in actual:
        roles = [step.tensors[t].role for t in op.inputs]
        assert roles == [Role.PARAMETER, Role.PARAMETER_GRADIENT] + [Role.STATE] * states
        assert [step.tensors[t].role for t in op.outputs] == [Role.PARAMETER] + [Role.STATE] * states
        assert step.base(op.outputs[0]) == step.base(op.inputs[0])
        assert op.body.operations >= 1 + states  # type: ignore[union-attr]


def test_weights_made_of_parameters_are_weights() -> None:
    """Weight normalisation, pruning masks and casts all leave a weight."""
    pruned = l1_unstructured(nn.Linear(6, 6), "weight", 0.5)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), pruned)
    step = capture(model, torch.randn(3, 6), loss=total)
    assert products(step) == [FORWARD, FORWARD, INPUT, WEIGHT, WEIGHT]


def test_learned_queries_are_activations_of_the_layer_that_reads_them() -> None:
    class Latents(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.latents, self.proj = nn.Parameter(torch.randn(5, 6)), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.proj(self.latents) @ x

    step = capture(Latents(), torch.randn(3, 6, 6), loss=total)
    assert products(step, "proj") == [FORWARD, INPUT, WEIGHT]


def test_products_of_an_optimizer_stay_products() -> None:
    """Orthogonalised momentum (Muon) multiplies matrices of the gradient's size inside the update."""

    class Orthogonal(torch.optim.Optimizer):
        def __init__(self, params: object) -> None:
            super().__init__(params, {})  # type: ignore[arg-type]

        @torch.no_grad()
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                scaled = parameter.grad / parameter.grad.norm()
                gram = scaled @ scaled.t()
                parameter.add_(2 * scaled - gram @ scaled, alpha=-0.1)

    model = nn.Linear(6, 4, bias=False)
    step = capture(model, torch.randn(3, 6), loss=total, optimizer=Orthogonal(model.parameters()))
    actual = step.only(Phase.UPDATE)
    assert [op.name for op in actual] == ["mm", "mm", "orthogonal"]
    assert actual.macs == 4 * 4 * 6 * 2
    assert {op.layer for op in actual} == {""}
    last = step.ops[-1]
    assert step.tensors[last.outputs[0]].role is Role.PARAMETER
    assert set(actual.ops[1].outputs) <= set(last.inputs)


def test_the_gradient_that_a_weight_product_reads_is_an_activations() -> None:
    class Rectified(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight).relu() * self.scale

    step = capture(Rectified(), torch.randn(3, 6), loss=total)
    phases = {(op.name, op.phase) for op in step if op.phase.backward}
    assert ("threshold_backward", Phase.GRAD_INPUT) in phases
    assert ("sum", Phase.GRAD_WEIGHT) in phases
    muls = [op.phase for op in step if op.name == "mul" and op.phase.backward]
    assert sorted(muls) == [Phase.GRAD_INPUT, Phase.GRAD_WEIGHT]


def test_a_criterion_that_is_a_module_is_the_loss() -> None:
    x, y = torch.randn(3, 5), torch.tensor([0, 1, 2])
    module = capture(mlp(5, 6, 7), x, y, loss=nn.CrossEntropyLoss())
    function = capture(mlp(5, 6, 7), x, y, loss=F.cross_entropy)
    assert [op.name for op in module.only(Phase.LOSS)] == ["_log_softmax", "nll_loss_forward"]
    assert [(op.name, op.layer, op.phase) for op in module] == [(op.name, op.layer, op.phase) for op in function]


def test_a_tensor_written_in_parts_waits_for_all_of_them() -> None:
    class Collects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = x.clone()
            for position in range(3):
                out[:, position] = self.layer(x[:, position])
            return out

    step = capture(Collects(), torch.randn(2, 3, 4), loss=total)
    reader = next(index for index, op in enumerate(step) if op.phase is Phase.LOSS)
    waited, todo = set(), [reader]
    while todo:
        actual = set(step.dependencies[todo.pop()]) - waited
        waited |= actual
        todo.extend(actual)
    assert waited == set(range(reader))
