"""Parallelism as a transform: the step that one of n equal devices does, with its exchanges as ops.

Three ways to share a step (A. Krizhevsky: One weird trick for parallelizing convolutional neural networks. 2014; MC-DLA,
Sec. II-C): `data` cuts the batch and sums gradients of weights, `model` cuts the output features of every layer, gathers X and sums
dX, `mixed` chooses for each layer. Whatever a result's readers need is a tensor that an exchange makes, so that dependencies follow
from tensors as in any step, and an exchange holds up its readers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from trainyard.checks import require_choice
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import DTYPE_BYTES, Collective, Step
from trainyard.ir.routing import divided, joined
from trainyard.mapping.parallel.data import Reduce, reduce_gradients
from trainyard.mapping.parallel.layer_choice import MODES, cheapest, named
from trainyard.mapping.parallel.model import Mode, Rewriter, shared_tables
from trainyard.mapping.parallel.relayout import Stored, Summed


def data(step: Step, devices: int, *, bucket_bytes: int = 0, reduce: Reduce = "once") -> Step:
    """One device's step with 1/devices of the batch and an all-reduce of every gradient of a parameter.

    `bucket_bytes=0` exchanges each tensor by itself as soon as it is ready, else gradients wait until a bucket is full or read.
    Batch normalisation takes the statistics of its own share.

    >>> import trainyard as ty
    >>> one = data(ty.zoo.load("alexnet", batch=512), devices=8)
    >>> one.batch, exchanged(one)["all_reduce"] == one.parameters
    (64, True)
    """
    require_choice("parallel", reduce=(reduce, ("once", "every_call")))
    if bucket_bytes < 0:
        raise BadInput(f"parallel.data: bucket_bytes must be at least 0, got {bucket_bytes!r}")
    if _alone(step, devices):
        return step
    own_step = step.rebatch(share(step, devices))
    ops, tensors = reduce_gradients(own_step, devices, bucket_bytes=bucket_bytes, reduce=reduce)
    return replace(own_step, ops=tuple(ops), tensors=tuple(tensors))


def model(step: Step, devices: int, *, exchange: Summed = "all_reduce", stored: Stored = "shard") -> Step:
    """One device's step with 1/devices of every layer's output features and the whole batch (rules: `model_parallel`).

    `exchange` is that of dX where a device reads only its piece of it next. `stored="shard"` keeps the pieces of X for backward and
    gathers them again for dW, "whole" keeps what was gathered.

    >>> import trainyard as ty
    >>> exchanged(model(ty.zoo.load("alexnet", batch=512), devices=8, exchange="reduce_scatter"))  # 3 x 512 + 1 for the loss
    {'all_gather': 209584128, 'all_reduce': 1537, 'reduce_scatter': 104792064}
    """
    require_choice("parallel", exchange=(exchange, ("all_reduce", "reduce_scatter")), stored=(stored, ("shard", "whole")))
    if _alone(step, devices):
        return step
    whole = _undivided(step)
    rewriter = Rewriter(
        step=whole, devices=devices, stored=stored, mode=lambda layer: "model", summed=exchange, by_rows=shared_tables(whole)
    )
    return _divided(rewriter.rewrite())


def mixed(
    step: Step,
    devices: int,
    *,
    choice: Mapping[str, Mode] | Literal["auto"] = "auto",
    bucket_bytes: int = 0,
    reduce: Reduce = "once",
    exchange: Summed = "all_reduce",
    stored: Stored = "shard",
) -> Step:
    """One device's step with its samples in some layers and its features in others; the options are those of `data` and `model`.

    `choice` names layers (or what they are part of) with "data" or "model"; "auto" takes the cheaper exchange of each layer,
    borders included (`layer_choice`), or one mode for all if that exchanges less. From a layer under `data` to one under `model`
    samples are gathered, back dX is reduce-scattered into samples.

    >>> import trainyard as ty
    >>> trick = mixed(ty.zoo.load("alexnet", batch=512), devices=8, choice={"classifier": "model"})  # "one weird trick"
    >>> sorted(exchanged(trick))
    ['all_gather', 'all_reduce', 'reduce_scatter']
    """
    require_choice(
        "parallel",
        reduce=(reduce, ("once", "every_call")),
        exchange=(exchange, ("all_reduce", "reduce_scatter")),
        stored=(stored, ("shard", "whole")),
    )
    if _alone(step, devices):
        return step
    if isinstance(choice, str) and choice != "auto":
        raise UnknownName("choice", choice, ("auto",), "parallel.mixed")
    batch = share(step, devices)
    step = _undivided(step)

    def chosen(modes: Mapping[str, Mode]) -> Step:
        if "data" not in modes.values():
            return model(step, devices, exchange=exchange, stored=stored)
        shared = shared_tables(step)
        rewriter = Rewriter(
            step=step,
            devices=devices,
            stored=stored,
            batch=batch,
            mode=lambda layer: modes.get(layer, "data"),
            summed=exchange,
            by_rows=shared,
        )
        own_step = rewriter.rewrite()
        only = rewriter.partial_gradients()
        ops, tensors = reduce_gradients(own_step, devices, bucket_bytes=bucket_bytes, reduce=reduce, only=only)
        return _divided(replace(own_step, ops=tuple(ops), tensors=tuple(tensors)))

    if not isinstance(choice, str):
        return chosen(named(step, choice))
    candidates = cheapest(step, reduce=reduce, exchange=exchange, stored=stored)
    uniform = [dict.fromkeys(candidates[0], mode) for mode in MODES]
    candidates += [modes for modes in uniform if modes not in candidates]
    return min(map(chosen, candidates), key=carried_bytes)


def _undivided(step: Step) -> Step:
    """The step with one op for each grouped product, so that an op of the step is one of a device's."""
    ops, tensors = joined(step.ops, step.tensors)
    return replace(step, ops=ops, tensors=tensors) if any(op.routing for op in ops) else step


def _divided(step: Step) -> Step:
    ops, tensors = divided(step.ops, step.tensors)
    return replace(step, ops=ops, tensors=tensors) if any(op.routing for op in ops) else step


def share(step: Step, devices: int) -> int:
    """Samples of one device."""
    if step.batch % devices:
        raise BadInput(f"a batch of {step.batch} does not divide over {devices} devices: choose a multiple of {devices}")
    return step.batch // devices


def exchanged(step: Step) -> dict[str, int]:
    """Elements of the whole tensors that a step exchanges, by kind."""
    elements: dict[str, int] = {}
    for op in step.ops:
        if isinstance(op.body, Collective):
            elements[op.body.kind] = elements.get(op.body.kind, 0) + op.body.elements
    return elements


def carried_bytes(step: Step) -> float:
    """What each link of one ring through all devices carries: an all-reduce twice, gathers and scatters once, less one share."""
    halves = {"all_reduce": 2}
    return sum(
        halves.get(op.body.kind, 1)
        * op.body.elements
        * (op.body.ranks - 1)
        / op.body.ranks
        * DTYPE_BYTES[step.tensors[op.inputs[0]].dtype]
        for op in step.ops
        if isinstance(op.body, Collective)
    )


def _alone(step: Step, devices: int) -> bool:
    """Whether the step is one device's already: there is only one, or it was captured with its exchanges (DDP, FSDP)."""
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise BadInput(f"parallel: devices must be a positive whole number, got {devices!r}")
    for index, op in enumerate(step.ops):
        if op.is_product and (len(op.inputs) < 2 or not op.outputs):
            raise BadInput(f"step {step.name!r}: op {index} ({op.name}) names no tensors, so that nothing says what to exchange")
    ranks = {op.body.ranks for op in step.ops if isinstance(op.body, Collective)}
    if ranks and ranks != {devices}:
        captured_ranks = " and ".join(map(str, sorted(ranks)))
        raise BadInput(
            f"step {step.name!r} was captured with exchanges between {captured_ranks} ranks, not {devices}: "
            f"give devices={max(ranks)} or capture the step without them"
        )
    return bool(ranks) or devices == 1
