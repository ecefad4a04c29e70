"""The ways to run a region. Each computes the same function and the same gradients; they differ in time and in what they save.

- `keep`: the module's own code, untouched.
- `checkpoint`: only its inputs are saved; backward calls it once more (`checkpointing`).
- `selective`: the results of its products are saved too, and only the rest is computed once more.
- `compiled 0.5`: the module compiled by `torch.compile`, whose partitioner saves as much as this share of the activations and
  recomputes the rest inside the compiled backward. A compiled region rounds differently from an eager one, so these are opt-in.
  A region that the compiler refuses runs its own code, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Literal, get_args

import torch
from torch import nn

from trainyard.live.paging.regions.checkpointing import checkpoint, selective

Call = Callable[..., Any]
CompilerName = Literal["inductor", "inductor_cpp", "aot_eager"]
COMPILERS: tuple[CompilerName, ...] = get_args(CompilerName)
"""`inductor_cpp` is inductor with the calls of a graph written in C++ instead of Python; `aot_eager` generates no code."""
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
CHECKPOINT = Variant("checkpoint", lambda call, kind: partial(checkpoint, call))
SELECTIVE = Variant("selective", lambda call, kind: partial(selective, call))


def variants(compiler: CompilerName | None) -> tuple[Variant, ...]:
    """All ways to run a region, the one that takes the least memory without a compiler first."""
    compiled = () if compiler is None else tuple(_compiled(share, compiler) for share in SHARES)
    return (CHECKPOINT, KEEP, SELECTIVE, *compiled)


def backend_of(share: float, compiler: CompilerName, admit: Callable[[int], None] | None = None) -> Callable[..., Any]:
    """A backend of `torch.compile` that saves this share of activations.

    `admit` gets the bytes that the forward graph saves or returns, before code is generated for it, and may raise.
    """

    def backend(graph: Any, inputs: Sequence[Any]) -> Any:
        from torch._functorch import config

        # Backward is compiled with forward: later on, the settings below would be gone, and torch keeps both in one cache entry.
        options: dict[str, Any] = {"activation_memory_budget": share, "force_non_lazy_backward_lowering": True}
        if admit is not None:  # code from that cache is not announced; what is inside of a graph is still cached
            options["enable_autograd_cache"] = False
        with config.patch(options), _calls_in_cpp() if compiler == "inductor_cpp" else nullcontext():
            if compiler != "aot_eager":
                from torch._inductor.compile_fx import compile_fx, compile_fx_inner

                def compile_graph(module: Any, example: Sequence[Any], **options: Any) -> Any:
                    if admit is not None and not options.get("is_backward"):
                        admit(_result_bytes(module))
                    return compile_fx_inner(module, example, **options)

                return compile_fx(graph, inputs) if admit is None else compile_fx(graph, inputs, inner_compile=compile_graph)
            from torch._dynamo.backends.common import aot_autograd
            from torch._functorch._aot_autograd.utils import make_boxed_func
            from torch._functorch.partitioners import min_cut_rematerialization_partition
            from torch._inductor.decomposition import select_decomp_table

            def keep_forward(module: Any, _: Any) -> Any:
                if admit is not None:
                    admit(_result_bytes(module))
                return make_boxed_func(module.forward)

            keep_graph = aot_autograd(
                fw_compiler=keep_forward,
                bw_compiler=lambda module, _: make_boxed_func(module.forward),
                partition_fn=min_cut_rematerialization_partition,
                # As it is, batch norm would save running statistics for backward, which forward changes afterwards.
                decompositions=select_decomp_table(),
            )
            return keep_graph(graph, inputs)

    return backend


def _calls_in_cpp() -> AbstractContextManager[Any]:
    from torch._inductor import config

    return config.patch(cpp_wrapper=True)  # type: ignore[no-any-return]


def _result_bytes(module: Any) -> int:
    """Bytes of the tensors that a graph computes and returns."""
    nodes = {node for node in module.graph.output_node().all_input_nodes if node.op != "placeholder"}
    values = [node.meta.get("val") for node in nodes]
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))


@cache
def _compiled(share: float, compiler: CompilerName) -> Variant:
    """One backend object for each share, also for later overlays: torch caches compiled code by function and backend."""
    backend = backend_of(share, compiler)
    failed: set[tuple[Any, ...]] = set()

    def wrap(call: Call, kind: tuple[Any, ...]) -> Call:
        compiled = torch.compile(own_code(call, (share, compiler, *kind)), backend=backend, dynamic=False)

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


def own_code(call: Call, key: tuple[Any, ...]) -> Call:
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
