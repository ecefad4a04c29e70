"""The ways to run a region. Each computes the same function and the same gradients; they differ in time and in what they save.

- `keep`: the module's own code, untouched.
- `checkpoint`: only its inputs are saved; backward calls it once more (`torch.utils.checkpoint`, with the random state of forward).
- `compiled 0.5`: the module compiled by `torch.compile`, whose partitioner saves as much as this share of the activations and
  recomputes the rest inside the compiled backward. A compiled region rounds differently from an eager one, so these are opt-in.
  A region that the compiler refuses runs its own code, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

Call = Callable[..., Any]
CompilerName = Literal["inductor", "aot_eager"]
SHARES = (1.0, 0.5, 0.2, 0.0)
"""Shares of a region's activations that compiled variants may save."""
RECOMPILATIONS = 256
"""Compilations of one function that torch allows inside the with-block: kinds of regions, variants and shapes."""
_ABSENT = object()


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A way to run a region: `wrap` makes the call that replaces the module's own."""

    name: str
    wrap: Callable[[Call, tuple[Any, ...]], Call]
    """From a module's own call and the kind of its region."""
    compiles: bool = False


KEEP = Variant("keep", lambda call, kind: call)
CHECKPOINT = Variant("checkpoint", lambda call, kind: partial(checkpoint, call, use_reentrant=False))


def variants(compiler: CompilerName | None) -> tuple[Variant, ...]:
    """All ways to run a region, the one that takes the least memory without a compiler first."""
    compiled = () if compiler is None else tuple(_compiled(share, compiler) for share in SHARES)
    return (CHECKPOINT, KEEP, *compiled)


@cache
def _compiled(share: float, compiler: CompilerName) -> Variant:
    """One backend object for each share, also for later overlays: torch caches compiled code by function and backend."""

    def backend(graph: Any, inputs: Sequence[Any]) -> Any:
        from torch._functorch import config

        with config.patch(activation_memory_budget=share):
            if compiler == "inductor":
                from torch._inductor.compile_fx import compile_fx

                return compile_fx(graph, inputs)
            from torch._dynamo.backends.common import aot_autograd
            from torch._functorch._aot_autograd.utils import make_boxed_func
            from torch._functorch.partitioners import min_cut_rematerialization_partition

            keep_graph = aot_autograd(
                fw_compiler=lambda module, _: make_boxed_func(module.forward), partition_fn=min_cut_rematerialization_partition
            )
            return keep_graph(graph, inputs)

    failed: set[tuple[Any, ...]] = set()

    def wrap(call: Call, kind: tuple[Any, ...]) -> Call:
        compiled = torch.compile(_own_code(call, (share, compiler, *kind)), backend=backend, dynamic=False)

        def run(*arguments: Any, **keywords: Any) -> Any:
            if kind in failed:
                return call(*arguments, **keywords)
            try:
                return compiled(*arguments, **keywords)
            except torch._dynamo.exc.TorchDynamoException as error:  # raised before anything was computed
                failed.add(kind)
                warnings.warn(f"{kind[0].__name__} cannot be compiled and runs without: {error!s:.200}", stacklevel=2)
                return call(*arguments, **keywords)

        return run

    return Variant(f"compiled {share}", wrap, compiles=True)


_CODE: dict[tuple[Any, ...], CodeType] = {}


def _own_code(call: Call, key: tuple[Any, ...]) -> Call:
    """A method whose code object is its own for each key.

    torch keeps all compiled versions of a code object in one list and tests the guards of one after the other at every call. With a
    code object for each kind of region and variant the list has one entry.
    """
    function = getattr(call, "__func__", None)
    if not isinstance(function, FunctionType) or not isinstance(call, MethodType):
        return call
    code = _CODE.setdefault((function.__code__, *key), function.__code__.replace())
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return MethodType(copy, call.__self__)


class Entry:
    """The call of one module: replaced by a variant's, and put back."""

    def __init__(self, module: nn.Module, kind: tuple[Any, ...]) -> None:
        self.module, self.kind = module, kind
        self.attribute = "forward" if module._compiled_call_impl is None else "_compiled_call_impl"
        self.call: Call = getattr(module, self.attribute)
        self.previous = module.__dict__.get(self.attribute, _ABSENT)
        self.calls: dict[str, Call] = {}

    def variant(self, variant: Variant) -> Call:
        """The variant's call: made once, since a compiled one keeps its code."""
        if variant.name not in self.calls:
            self.calls[variant.name] = variant.wrap(self.call, self.kind)
        return self.calls[variant.name]

    def replace(self, call: Call) -> None:
        if call is self.call:
            self.restore()
        else:
            self.module.__dict__[self.attribute] = call

    def restore(self) -> None:
        if self.previous is _ABSENT:
            self.module.__dict__.pop(self.attribute, None)
        else:
            self.module.__dict__[self.attribute] = self.previous
