"""Plain training and the usual ways to save memory: contexts in which a network's step is run, entered any number of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

from overlay_gpu import PRODUCTS

from overlay_cases.networks import Network

Alternative = Callable[[], AbstractContextManager[Any]]
Compiled = Callable[[float], Any]
"""The whole model, compiled with a share of its activations saved."""


@contextmanager
def replaced(blocks: Sequence[Any], wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Blocks whose forward is wrapped inside the with-block."""
    for block in blocks:
        block.forward = wrap(block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


@contextmanager
def gradient_checkpointing(network: Network) -> Iterator[None]:
    """The model's own, where it has one; otherwise every block in `torch.utils.checkpoint`."""
    from torch.utils.checkpoint import checkpoint

    if getattr(network.model, "supports_gradient_checkpointing", False):
        before = [(module, set(module.__dict__)) for module in network.model.modules()]
        network.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        try:
            yield
        finally:
            network.model.gradient_checkpointing_disable()
            for module, names in before:  # an attribute more on a layer, and compiled code is compiled again
                for name in set(module.__dict__) - names:
                    del module.__dict__[name]
    else:
        with replaced(network.blocks, lambda forward: partial(checkpoint, forward, use_reentrant=False)):
            yield


@contextmanager
def selective_checkpointing(network: Network) -> Iterator[None]:
    """Every block in a selective checkpoint that saves the results of products and attention."""
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        saved = op._schema.name.partition("::")[2] in (*PRODUCTS, "convolution")
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    with replaced(network.blocks, lambda forward: partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)):
        yield


@contextmanager
def compiled_whole(network: Network, share: float, compiled: Compiled) -> Iterator[None]:
    """The whole model compiled with this share of its activations saved, as `torch.compile(model)` has it under that budget."""
    with replaced([network.model], lambda forward: compiled(share)):
        yield


def compiled_alone(network: Network) -> Compiled:
    """Compiles the model as `torch.compile(model)` does, each share once."""
    import torch

    from trainyard.live.paging.regions.variants import backend_of, own_code

    @cache
    def compiled(share: float) -> Any:
        own = own_code(network.model.forward, ("alone", share))
        return torch.compile(own, backend=backend_of(share, "inductor"), dynamic=False)

    return compiled


def alternatives(network: Network, shares: Sequence[float], with_cpu: bool, compiled: Compiled) -> dict[str, Alternative]:
    """Contexts by name. A share of 0.5 is named "torch.compile, budget 0.5", and runs what `compiled` returns for it."""
    import torch

    contexts: dict[str, Alternative] = {
        "plain": nullcontext,
        "gradient checkpointing": partial(gradient_checkpointing, network),
        "selective checkpointing": partial(selective_checkpointing, network),
    }
    if with_cpu:
        contexts["save_on_cpu"] = partial(torch.autograd.graph.save_on_cpu, pin_memory=torch.cuda.is_available())
    for share in shares:
        contexts[f"torch.compile, budget {share}"] = partial(compiled_whole, network, share, compiled)
    return contexts
