"""Time over peak memory of other people's networks on a GPU: the overlay beside every usual way to save memory, in one run.

`overlay_gpu.py --models` runs it. A step is forward, backward and AdamW; times are medians of device time, memory is the peak of
`torch.cuda.max_memory_allocated`. The overlay is given each alternative's peak as its budget, and 1 % more.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from overlay_gpu import GIB, PRODUCTS, say
from overlay_models import NETWORKS, Network

TOLERANCE = 1.01
"""Of an alternative's peak, which the overlay may take."""
ROOMY = 1.3
"""A budget of so many times the plain peak: nothing needs to move."""
STEPS = {"llama-7b": (3, 1)}
"""Steps that are timed and steps before them, where they take long."""
USUAL_STEPS = (8, 3)
PAGED = {"llama-7b": 24.0}
"""GiB of networks that are also trained with AdamW's state in host memory and updates in backward."""


def timed(network: Network, steps: int, warm: int) -> dict[str, float]:
    """Median device time of a step, the host's time to issue one, and the peak of memory."""
    import torch

    for _ in range(warm):
        network.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        network.step()
        mark.record()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    network.step()
    host_s = time.perf_counter() - begun  # the device was idle, so nothing held the host up
    torch.cuda.synchronize()
    times = [start.elapsed_time(end) for start, end in pairwise(marks)]
    return {"ms": statistics.median(times), "host_ms": 1e3 * host_s, "gib": torch.cuda.max_memory_allocated() / GIB}


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

    if hasattr(network.model, "gradient_checkpointing_enable"):
        network.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        try:
            yield
        finally:
            network.model.gradient_checkpointing_disable()
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
def compiled(network: Network, share: float) -> Iterator[None]:
    """The whole model compiled, with that share of its activations saved."""
    import torch
    from torch._functorch import config

    torch._dynamo.reset()
    with config.patch(activation_memory_budget=share):
        network.model.compile(dynamic=False)
        try:
            yield
        finally:
            network.model._compiled_call_impl = None
    torch._dynamo.reset()


def alternatives(network: Network, shares: Sequence[float], with_cpu: bool) -> dict[str, Any]:
    """Contexts by name, each for one use."""
    import torch

    contexts: dict[str, Any] = {
        "plain": nullcontext(),
        "gradient checkpointing": gradient_checkpointing(network),
        "selective checkpointing": selective_checkpointing(network),
    }
    if with_cpu:
        contexts["save_on_cpu"] = torch.autograd.graph.save_on_cpu(pin_memory=True)
    return contexts | {f"torch.compile, budget {share}": compiled(network, share) for share in shares}


def gradients(network: Network) -> list[Any]:
    """Gradients of one step, on the host."""
    network.step()
    return [parameter.grad.cpu() for parameter in network.model.parameters() if parameter.grad is not None]


def equal_bits(gradients: Sequence[Any], others: Sequence[Any]) -> bool:
    import torch

    return len(gradients) == len(others) and all(map(torch.equal, gradients, others))


def overlaid(
    network: Network, budgets: Sequence[float], compile: bool, expected: Sequence[Any], steps: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """The overlay at budgets from the largest down, all from one survey: rows, with the error where one is refused."""
    import trainyard as ty

    begun = time.perf_counter()
    pages = ty.live.overlay(network.model, int(budgets[0] * GIB), compile=compile)
    with warnings.catch_warnings(record=True) as notes, pages:
        warnings.simplefilter("always")
        for gib in budgets:
            row: dict[str, Any] = {"budget_gib": gib, "compile": compile}
            notes.clear()
            try:
                pages.rebudget(gib * GIB)
                network.step()
                while not pages.is_settled:
                    network.step()
                row["prepared_s"] = time.perf_counter() - begun
                row |= timed(network, *steps)
            except ty.TrainyardError as error:
                yield row | {"refused": str(error)}
                continue
            row |= described(pages.plan) | {"whole_share": pages.whole_share}
            row["warnings"] = [str(note.message) for note in notes if "budget" in str(note.message)]
            row["equal_bits"] = equal_bits(gradients(network), expected) if expected and not compile else None
            yield row
            begun = time.perf_counter()


def described(plan: Any) -> dict[str, Any]:
    """What a plan predicted and chose."""
    names = list(plan.variants.values())
    chain = next(iter(plan.chains.values()))
    return {
        "predicted_ms": 1e3 * plan.choice.time_s,
        "predicted_gib": plan.choice.peak_bytes / GIB,
        "tightened": plan.tightened,
        "variants": {name: names.count(name) for name in sorted(set(names))},
        "chain": [[cost.variant, cost.held_bytes / GIB, 1e3 * cost.seconds] for cost in chain],
    }


def shown(row: dict[str, Any]) -> str:
    if "refused" in row:
        return f"refused: {row['refused']}"
    text = f"{row['ms']:7.1f} ms, {row['gib']:6.2f} GiB, host {row['host_ms']:6.1f} ms"
    if "predicted_ms" in row:
        text += f" (predicted {row['predicted_ms']:.1f} ms, {row['predicted_gib']:.2f} GiB; {row['variants']})"
        text += (
            f" prepared in {row['prepared_s']:.1f} s; whole {row['whole_share']}; bits {row['equal_bits']}; {row['warnings'] or ''}"
        )
    return text


def paged(network: Network, gib: float, steps: tuple[int, int]) -> dict[str, Any]:
    """Training within a budget that parameters and gradients alone exceed: the overlay, with AdamW paged and run in backward."""
    import torch

    import trainyard as ty

    network.optimizer.state.clear()
    network.optimizer.param_groups[0]["lr"] = 1e-5
    network.model.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    with torch.no_grad():
        first = float(network.loss())
    row: dict[str, Any] = {"budget_gib": gib, "first_loss": first}
    torch.cuda.reset_peak_memory_stats()
    pages = ty.live.overlay(network.model, int(gib * GIB))
    with ty.live.paged_optimizer(network.optimizer, in_backward=True), pages:
        network.step()
        while not pages.is_settled:
            network.step()
        row["peak_gib"] = torch.cuda.max_memory_allocated() / GIB
        row |= timed(network, *steps) | described(pages.plan)
    with torch.no_grad():
        row["last_loss"] = float(network.loss())
    row["state_gib"] = sum(tensor.nbytes for state in network.optimizer.state.values() for tensor in state.values()) / GIB
    return row


def front(name: str, shares: Sequence[float], with_cpu: bool) -> Iterator[dict[str, Any]]:
    """All alternatives of one network, and the overlay at each one's peak: the same document after every row."""
    import torch

    torch.manual_seed(0)
    network = NETWORKS[name]("cuda").with_optimizer()
    steps = STEPS.get(name, USUAL_STEPS)
    document: dict[str, Any] = {"name": name, "alternatives": [], "overlay": []}
    for label, context in alternatives(network, shares, with_cpu).items():
        begun = time.perf_counter()
        try:
            with context:
                network.step()
                row = {"name": label, "first_s": time.perf_counter() - begun}
                row |= timed(network, *((2, 0) if "cpu" in label else steps))
        except Exception as error:
            row = {"name": label, "refused": repr(error)[:200]}
        document["alternatives"].append(row)
        say(f"{name}: {label}: {shown(row)}")
        yield document
        torch.cuda.empty_cache()
    expected = gradients(network)
    document["plain_repeats_its_bits"] = equal_bits(expected, gradients(network))
    peaks = {
        row["name"]: TOLERANCE * row["gib"] for row in document["alternatives"] if "gib" in row and row["name"] != "save_on_cpu"
    }
    eager = sorted({ROOMY * peaks["plain"], *(gib for label, gib in peaks.items() if "compile" not in label)}, reverse=True)
    for compile, sizes in ((False, eager), (True, sorted(peaks.values(), reverse=True)))[: 1 + bool(shares)]:
        for row in overlaid(network, sizes, compile, expected if document["plain_repeats_its_bits"] else (), steps):
            document["overlay"].append(row)
            say(f"{name}: overlay{', compiled' if compile else ''}, budget {row['budget_gib']:.2f}: {shown(row)}")
            yield document
    if name in PAGED:
        document["paged"] = paged(network, PAGED[name], steps)
        say(f"{name}: AdamW paged: {document['paged']}")
        yield document
    del network, expected
    gc.collect()
    torch.cuda.empty_cache()


def measure(
    out: Path, names: Sequence[str], compiler_for: Mapping[str, Sequence[float]], cpu_for: Sequence[str], seconds: float
) -> None:
    """Fronts of the named networks, as far as the time goes.

    `compiler_for` names those that are also compiled, by the overlay and as a whole, which takes about a minute for each of their
    shares of activations, and `cpu_for` those that are also run with `save_on_cpu`.
    """
    import torch

    deadline = time.perf_counter() + seconds
    document: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "networks": []}
    for name in names or NETWORKS:
        if time.perf_counter() > deadline:
            say(f"out of time: {name} is left out")
            continue
        try:
            for network in front(name, compiler_for.get(name, ()), name in cpu_for):
                if network not in document["networks"]:
                    document["networks"].append(network)
                out.write_text(json.dumps(document), encoding="utf-8")
        except Exception as error:
            say(f"{name}: {error!r}"[:300])
