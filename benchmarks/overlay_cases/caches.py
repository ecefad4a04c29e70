"""Fills the compiler's caches on disk: a process for each network and share of activations, as many at a time as there are cores.

Networks are compiled as `fronts` runs them, whole and block by block, but nothing is trained: behind a compiled graph runs the
graph's own code without gradients, so a process takes the memory of inference alone. The process that measures a network then
finds its code in the caches, and only has to trace it: ten seconds for a share instead of minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from overlay_gpu import say

from overlay_cases.alternatives import replaced
from overlay_cases.networks import Network
from overlay_cases.others import network_of

if TYPE_CHECKING:
    from trainyard.live.paging.regions.variants import CompilerName

Backend = Callable[[Any, Any], Any]


def compile_only(backend: Backend) -> Backend:
    """A backend that compiles and then runs the graph itself, without gradients; results require them all the same."""

    def compile_and_set_aside(graph: Any, inputs: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_map

        backend(graph, inputs)

        def differentiable(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                return value.detach().requires_grad_()
            return value

        def run(*arguments: Any) -> Any:
            with torch.no_grad():
                results = graph(*arguments)
            return tree_map(differentiable, results) if torch.is_grad_enabled() else results

        return run

    return compile_and_set_aside


def compile_modules(network: Network, modules: Sequence[tuple[Any, tuple[Any, ...]]], backend: Backend) -> None:
    """Each kind of module once; `modules` are some of the network's with their kinds."""
    import torch

    from trainyard.live.paging.regions.variants import own_code

    set_aside = compile_only(backend)
    kinds = iter([kind for _, kind in modules])

    def compiled(forward: Any) -> Any:
        return torch.compile(own_code(forward, (id(set_aside), *next(kinds))), backend=set_aside, dynamic=False)

    with replaced([module for module, _ in modules], compiled):
        network.loss()


def fill_caches(
    spec: str, share: float, *, whole: bool, blocks: bool = True, device: str = "cuda", compiler: CompilerName = "inductor"
) -> None:
    """Compiles a network's blocks for one share of activations, and with `whole` the network as a whole."""
    import torch

    from trainyard.live.paging.regions.finding import regions_of
    from trainyard.live.paging.regions.variants import backend_of

    begun = time.perf_counter()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64
    network, backend = network_of(spec, device), backend_of(share, compiler)
    say(f"{spec}: built after {time.perf_counter() - begun:.0f} s")
    if whole:
        compile_modules(network, [(network.model, ("whole",))], backend)
        say(f"{spec}: {share} of the whole compiled after {time.perf_counter() - begun:.0f} s")
    if blocks:
        compile_modules(network, [(region.module, region.kind) for region in regions_of(network.model)], backend)
        say(f"{spec}: {share} of its blocks compiled after {time.perf_counter() - begun:.0f} s")
