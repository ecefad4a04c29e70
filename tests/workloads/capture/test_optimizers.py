"""Optimizers by the bytes that they read and write, against counts by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainyard import capture
from trainyard.ir import ElementWise, MatMul, Phase, Role, Step, Update
from trainyard.ir.step import DTYPE_BYTES

ROWS, COLUMNS = 48, 32
N = ROWS * COLUMNS
BLOCK = 64


def written_out(
    update: Callable[..., None], state: Callable[[Tensor], dict[str, Tensor]]
) -> Callable[[Iterable[Tensor]], Optimizer]:
    """An optimizer by hand: `update(parameter, gradient, **state)`."""

    class ByHand(Optimizer):
        def __init__(self, parameters: Iterable[Tensor]) -> None:
            super().__init__(parameters, {"lr": 0.1})  # type: ignore[arg-type]

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                if not self.state[parameter]:
                    self.state[parameter] = state(parameter)
                update(parameter, parameter.grad, **self.state[parameter])

    return ByHand


def lion(p: Tensor, g: Tensor, m: Tensor) -> None:
    p.add_(m.lerp(g, 0.1).sign_(), alpha=-0.1)
    m.lerp_(g, 0.01)


def lamb(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    m.lerp_(g, 0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    step = m / v.sqrt().add_(1e-6)
    p.add_(step * (p.norm() / step.norm()), alpha=-0.1)


def eight_bit_adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, m_scale: Tensor, v_scale: Tensor) -> None:
    """Moments in 8 bits with a scale for each block, as in 8-bit optimizers (T. Dettmers et al., ICLR 2022)."""
    for moment, scale, value, rate in ((m, m_scale, g, 0.1), (v, v_scale, g * g, 0.01)):
        blocks = (moment.float() - 128).view(-1, BLOCK) * scale[:, None]
        blocks = blocks.lerp(value.reshape(-1, BLOCK), rate)
        scale.copy_(blocks.abs().amax(1) / 127)
        moment.copy_((blocks / scale[:, None]).round().add(128).to(torch.uint8).view_as(moment))
        if moment is v:
            p.sub_(blocks.view_as(p))


def schedule_free(p: Tensor, g: Tensor, z: Tensor) -> None:
    p.lerp_(z, 0.1).sub_(g, alpha=0.01)
    z.sub_(g, alpha=0.1)


def like(**states: Callable[[Tensor], Tensor]) -> Callable[[Tensor], dict[str, Tensor]]:
    return lambda p: {name: make(p) for name, make in states.items()}


def scales(p: Tensor) -> Tensor:
    return torch.ones(p.numel() // BLOCK)


def bytes_(p: Tensor) -> Tensor:
    return torch.zeros_like(p, dtype=torch.uint8)


zeros = torch.zeros_like
SCALES = N // BLOCK * 4

# fmt: off
OPTIMIZERS: dict[str, tuple[Callable[[Iterable[Tensor]], Optimizer], int, int]] = {
    # bytes that the update of one fp32 weight reads and writes
    "sgd":           (lambda p: torch.optim.SGD(p, 0.1),                                      8 * N,             4 * N),
    "momentum":      (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),                        12 * N,            8 * N),
    "adam":          (lambda p: torch.optim.Adam(p),                                          16 * N,            12 * N),
    "amsgrad":       (lambda p: torch.optim.AdamW(p, amsgrad=True),                           20 * N,            16 * N),
    "adamw foreach": (lambda p: torch.optim.AdamW(p, foreach=True),                           16 * N,            12 * N),
    "adamw fused":   (lambda p: torch.optim.AdamW(p, fused=True),                             16 * N,            12 * N),
    "rmsprop":       (lambda p: torch.optim.RMSprop(p),                                       12 * N,            8 * N),
    "lion":          (written_out(lion, like(m=zeros)),                                       12 * N,            8 * N),
    "lamb":          (written_out(lamb, like(m=zeros, v=zeros)),                              16 * N,            12 * N),
    "schedule-free": (written_out(schedule_free, like(z=zeros)),                              12 * N,            8 * N),
    "adam in 8 bits": (written_out(eight_bit_adam, like(m=bytes_, v=bytes_, m_scale=scales, v_scale=scales)),
        10 * N + 2 * SCALES, 6 * N + 2 * SCALES),
}
# fmt: on


def step_of(model: nn.Module, optimizer: Optimizer, *, real: bool = False) -> Step:
    dtype = next(model.parameters()).dtype
    return capture(model, torch.randn(4, COLUMNS, dtype=dtype), loss=lambda y: y.float().sum(), optimizer=optimizer, real=real)


def moved(step: Step) -> tuple[int, int]:
    """Bytes read and written by the updates."""
    updates = [op for op in step if isinstance(op.body, Update)]
    return tuple(  # type: ignore[return-value]
        sum(step.tensors[i].elements * DTYPE_BYTES[step.tensors[i].dtype] for op in updates for i in numbers(op))
        for numbers in (lambda op: op.inputs, lambda op: op.outputs)
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_move_the_bytes_counted_by_hand(name: str) -> None:
    make, read, written = OPTIMIZERS[name]
    for real in (False, True):
        model = nn.Linear(COLUMNS, ROWS, bias=False)
        assert moved(step_of(model, make(model.parameters()), real=real)) == (read, written)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_fused_and_foreach_have_the_update_of_the_plain_optimizer(kind: type[Optimizer]) -> None:
    bodies = []
    for options in ({}, {"foreach": True}, {"fused": True}):
        model = nn.Linear(COLUMNS, ROWS)
        bodies.append([op.body for op in step_of(model, kind(model.parameters(), lr=0.1, **options)) if op.phase is Phase.UPDATE])  # type: ignore[arg-type, call-arg]
    assert bodies[0] == bodies[1] == bodies[2] != []


class EightBits(Tensor):
    """A tensor in 8 bits with a scale for each row, as a subclass that computes in fp32."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> EightBits:
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    def expanded(self) -> Tensor:
        return self.codes.float() * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return cls(func(args[0].codes), func(args[0].scale))
        if func is torch.ops.aten.copy_.default:
            args[0].scale.copy_(args[1].abs().amax(1, keepdim=True) / 127)
            args[0].codes.copy_((args[1] / args[0].scale).round().to(torch.int8))
            return args[0]
        return func(*[a.expanded() if isinstance(a, cls) else a for a in args], **(kwargs or {}))


def test_a_state_that_is_a_subclass_is_its_parts() -> None:
    def momentum(p: Tensor, g: Tensor, m: Tensor) -> None:
        value = m.lerp(g, 0.1)
        m.copy_(value)
        p.sub_(value, alpha=0.1)

    def state(p: Tensor) -> dict[str, Tensor]:
        return {"m": EightBits(torch.zeros_like(p, dtype=torch.int8), torch.ones(len(p), 1, device=p.device))}

    for real in (False, True):
        model = nn.Linear(COLUMNS, ROWS, bias=False)
        step = step_of(model, written_out(momentum, state)(model.parameters()), real=real)
        assert moved(step) == (9 * N + 4 * ROWS, 5 * N + 4 * ROWS)
        assert {t.dtype for t in step.tensors if t.role is Role.STATE and t.elements == N} == {"int8"}


class Lists(Optimizer):
    """Sign descent on all parameters at once, with torch's ops on lists, or AdamW in its fused kernel."""

    def __init__(self, parameters: Iterable[Tensor], fused: bool) -> None:
        super().__init__(parameters, {"lr": 0.1})  # type: ignore[arg-type]
        self.fused = fused

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        weights = self.param_groups[0]["params"]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight] = {"m": zeros(weight), "v": zeros(weight), "step": torch.zeros(())}
        gradients = [weight.grad for weight in weights]
        m, v, steps = ([self.state[weight][name] for weight in weights] for name in ("m", "v", "step"))
        if self.fused:
            torch._fused_adamw_(
                weights, gradients, m, v, [], steps,
                lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
            )  # fmt: skip
        else:
            torch._foreach_lerp_(m, gradients, 0.1)
            torch._foreach_add_(weights, torch._foreach_sign(m), alpha=-0.1)


@pytest.mark.parametrize("fused", [False, True])
def test_ops_on_lists_are_divided_by_parameter(fused: bool) -> None:
    model = nn.Linear(COLUMNS, ROWS)
    step = step_of(model, Lists(model.parameters(), fused))
    updates = [op.body for op in step if isinstance(op.body, Update)]
    operations = 8 if fused else 3  # torch's AdamW has eight ops for each parameter
    assert [(u.elements, u.operations) for u in updates] == [(N, operations), (ROWS, operations)]
    assert moved(step) == ((16 if fused else 12) * (N + ROWS), (12 if fused else 8) * (N + ROWS))
    assert not [op for op in step if op.phase is Phase.UPDATE and not isinstance(op.body, Update)]


class MasterWeights(Optimizer):
    """A bf16 model whose weights the optimizer keeps in fp32, in a list of its own."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.1})  # type: ignore[arg-type]
        self.master = [weight.detach().float().clone() for weight in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for weight, master in zip(self.param_groups[0]["params"], self.master, strict=True):
            master.sub_(weight.grad.float(), alpha=0.1)
            weight.copy_(master)


@pytest.mark.parametrize("real", [False, True])
def test_master_weights_are_states_and_are_left_as_they_were(real: bool) -> None:
    model = nn.Linear(COLUMNS, ROWS, bias=False).bfloat16()
    optimizer = MasterWeights(model.parameters())
    (master,) = optimizer.master
    before = master.clone()
    step = step_of(model, optimizer, real=real)
    assert moved(step) == (2 * N + 4 * N, 2 * N + 4 * N)  # the gradient and the master; the weight and the master
    assert {t.dtype for t in step.tensors if t.role is Role.STATE} == {"fp32"}
    assert optimizer.master[0] is master
    assert torch.equal(master, before)


def orthogonal(g: Tensor) -> Tensor:
    """Newton-Schulz iterations (K. Jordan: Muon, 2024)."""
    x = g / (g.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x


def muon(p: Tensor, g: Tensor, m: Tensor) -> None:
    p.sub_(orthogonal(m.lerp_(g, 0.1)), alpha=0.1)


def shampoo(p: Tensor, g: Tensor, left: Tensor, right: Tensor) -> None:
    left.addmm_(g, g.T)
    right.addmm_(g.T, g)
    for factor in (left, right):
        values, vectors = torch.linalg.eigh(factor)
        root = vectors * values.clamp_min(1e-6).pow(-0.25) @ vectors.T
        g = root @ g if factor is left else g @ root
    p.sub_(g, alpha=0.1)


def soap(p: Tensor, g: Tensor, basis: Tensor) -> None:
    basis.copy_(torch.linalg.qr(g @ g.T @ basis)[0])
    p.sub_(basis @ (basis.T @ g), alpha=0.1)


def square(side: int) -> Callable[[Tensor], Tensor]:
    return lambda p: torch.eye(side)


def update_products(step: Step) -> list[MatMul]:
    return [op.body for op in step if op.phase is Phase.UPDATE and isinstance(op.body, MatMul)]


@pytest.mark.parametrize("by_hand", [True, False])
def test_muons_products_are_products_of_the_update(by_hand: bool) -> None:
    model = nn.Linear(COLUMNS, ROWS, bias=False)
    if not by_hand and not hasattr(torch.optim, "Muon"):
        pytest.skip("this release of torch has no Muon")
    optimizer = written_out(muon, like(m=zeros))(model.parameters()) if by_hand else torch.optim.Muon(model.parameters())
    step = step_of(model, optimizer)
    side = ROWS if by_hand else COLUMNS  # torch's works on the shorter side
    iteration = side * side * (ROWS + COLUMNS - side) * 2 + side**3
    assert sum(product.macs for product in update_products(step)) == 5 * iteration
    update = next(op for op in step if isinstance(op.body, Update))
    states = [step.tensors[i].elements for i in update.inputs if step.tensors[i].role is Role.STATE]
    assert states == [N]


def test_matrix_roots_of_shampoo_are_in_the_step_with_their_operations() -> None:
    model = nn.Linear(COLUMNS, ROWS, bias=False)
    factory = written_out(shampoo, like(left=square(ROWS), right=square(COLUMNS)))
    for real in (False, True):
        step = step_of(model, factory(model.parameters()), real=real)
        roots = [op.body for op in step if op.name == "_linalg_eigh"]
        assert [(root.elements, root.operations) for root in roots if isinstance(root, ElementWise)] == [
            (ROWS**2, 9 * ROWS), (COLUMNS**2, 9 * COLUMNS),
        ]  # fmt: skip
        macs = ROWS * ROWS * COLUMNS + COLUMNS * COLUMNS * ROWS  # statistics, and their application
        assert sum(product.macs for product in update_products(step)) == 2 * macs + ROWS**3 + COLUMNS**3


def test_a_basis_by_qr_is_in_the_step_with_its_operations() -> None:
    model = nn.Linear(COLUMNS, ROWS, bias=False)
    step = step_of(model, written_out(soap, like(basis=square(ROWS)))(model.parameters()))
    (qr,) = [op.body for op in step if op.name == "linalg_qr"]
    assert isinstance(qr, ElementWise)
    assert qr.elements * qr.operations == pytest.approx(8 / 3 * ROWS**3, rel=0.02)  # 4/3 to factor, 4/3 to form Q


def test_a_parameter_without_elements_has_no_update() -> None:
    model = nn.Linear(4, 2)
    model.empty = nn.Parameter(torch.empty(0, 3))
    step = capture(
        model, torch.randn(3, 4), loss=lambda y: y.sum() + model.empty.sum(), optimizer=torch.optim.AdamW(model.parameters())
    )
    assert sorted(op.body.elements for op in step if isinstance(op.body, Update)) == [2, 8]
    assert step.parameters == 10


def test_adafactor_keeps_two_vectors() -> None:
    model = nn.Linear(COLUMNS, ROWS, bias=False)
    step = step_of(model, torch.optim.Adafactor(model.parameters()))
    states = {t.shape for t in step.tensors if t.role is Role.STATE}
    assert states == {(ROWS, 1), (1, COLUMNS)}
    assert [(p.M, p.N, p.K) for p in update_products(step)] == [(ROWS, COLUMNS, 1)]
    read, written = moved(step)
    assert (read, written) == (4 * (3 * N + ROWS + COLUMNS), 4 * (N + ROWS + COLUMNS))  # weight, gradient, the outer product


def test_an_optimizer_in_hooks_of_backward() -> None:
    model = nn.Linear(COLUMNS, ROWS)
    optimizers = {weight: torch.optim.Adam([weight]) for weight in model.parameters()}

    def hook(weight: Tensor) -> None:
        optimizers[weight].step()  # type: ignore[index]
        optimizers[weight].zero_grad()  # type: ignore[index]

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(hook)
    step = capture(lambda batch: model(torch.randn(batch, COLUMNS)).sum().backward(), model=model, batch=4)
    assert moved(step) == (16 * (N + ROWS), 12 * (N + ROWS))


def test_sparse_gradients_touch_their_rows_only() -> None:
    model = nn.Embedding(100, 8, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    indices = torch.tensor([[1, 2, 3], [3, 4, 5]])
    step = capture(model, indices, loss=lambda y: y.sum(), optimizer=optimizer, real=True)
    rows, distinct = 6, 5
    # The gradient's values and indices; the rows of the weight and of two moments after equal rows were added up.
    assert moved(step) == (rows * (8 * 4 + 8) + 3 * distinct * 8 * 4, 3 * distinct * 8 * 4)
    assert not optimizer.state


def test_lbfgs_evaluates_the_loss_inside_its_step() -> None:
    model = nn.Linear(COLUMNS, ROWS, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1, history_size=2)

    def train_step(batch: int) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(torch.randn(batch, COLUMNS)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = capture(train_step, model=model, batch=4, real=True)
    assert {Phase.FORWARD, Phase.GRAD_WEIGHT, Phase.UPDATE} <= {op.phase for op in step}
