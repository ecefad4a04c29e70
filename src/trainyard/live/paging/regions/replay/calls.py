"""One call of a block, recorded: a function for its forward, one for its backward, and the node of autograd that replays them.

Forward computes from *inputs*, tensors at fixed places. Where an argument is the result of another recorded call, as in a stack of
layers, it lies where it must be, and nothing is copied. The same holds for gradients on their way back. Gradients of parameters
are results like all others: `parameter.grad` lies in memory of the recordings until the next pass begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, saved_tensors_hooks

from trainyard.live.paging.regions.call_state import put_back, set_statistics_aside
from trainyard.live.paging.regions.replay.arguments import NotPlain, Structure, is_to_be_computed, take_apart
from trainyard.live.paging.regions.replay.conditions import Conditions, without_kept_casts
from trainyard.live.paging.regions.replay.forward_hooks import ForwardHooks, Seen
from trainyard.live.paging.regions.replay.parts import Edge, Part, edge_of, nodes_behind, owners_of, parts_of, taken_apart
from trainyard.live.paging.regions.replay.places import Place, copy_content, copy_of
from trainyard.live.paging.regions.replay.random_numbers import CallRandom, recording
from trainyard.live.paging.regions.replay.recorders import Recording
from trainyard.live.paging.regions.replay.stand_ins import StandIns
from trainyard.live.paging.signature import autocast_modes

if TYPE_CHECKING:
    from trainyard.live.paging.regions.replay.obstacles import Rehearsal
    from trainyard.live.paging.regions.replay.passes import RecordedPasses

Call = Callable[..., Any]


class Input(NamedTuple):
    """A tensor that the block is called with, or a gradient that its backward is given."""

    place: Place
    source: Place | None
    """The result of another recorded call that it was, or was a view of."""
    requires_grad: bool = False

    def can_be_filled_with(self, tensor: Tensor) -> bool:
        """Whether the content of a tensor can be here without taking the place from somebody who holds it."""
        return self.place.is_at(tensor) or self.source is None or not self.source.is_held


class Token:
    """A call of forward whose backward is to come. It lives as long as autograd's graph does."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        """Of the pass."""


class _Differentiable(NamedTuple):
    """What backward needs of a recorded forward: where its results come from, and the tensors that have gradients."""

    edges: list[Edge]
    owners: list[Any]
    """Nodes that keep the graph behind the edges alive."""
    leaves: list[Tensor]
    parts: dict[int, list[Part]]
    """Of the gradients that are returned part by part, by the number of their leaf."""
    inputs: list[Tensor]
    """All of them, for a second call."""


class Values(NamedTuple):
    """What a call returns, or shows to forward hooks: tensors that it computes, and others that it was given or has."""

    structure: Structure
    tensors: list[int]
    """Which of the outputs each is, or with ~ of the others."""

    def put_together(self, outputs: Sequence[Tensor], others: Sequence[Tensor]) -> Any:
        return self.structure.put_together([outputs[number] if number >= 0 else others[~number] for number in self.tensors])


class Results(NamedTuple):
    """Of a call."""

    returned: Values
    shown: Values
    modules: list[nn.Module]
    """That show values to their hooks."""


class RecordedCall:
    """One call of a block in the passes of a plan."""

    def __init__(
        self,
        passes: RecordedPasses,
        block: nn.Module,
        call: Call,
        structure: Structure,
        random: CallRandom | None,
        rehearsal: Rehearsal,
    ) -> None:
        self.passes, self.block, self.call, self.structure, self.random = passes, block, call, structure, random
        self.recorder = passes.recorder
        self.conditions = Conditions(block)
        self.autocast = autocast_modes()
        self.stand_ins = StandIns(block)
        self.parameters = self.stand_ins.parameters
        self.leaves_of_parameters: list[Tensor] = []
        """Each as often as its gradient has parts."""
        self.constants = [*(one for one in block.parameters() if not one.requires_grad), *block.buffers()]
        """Tensors that the block has and that get no gradients."""
        self.hooks = ForwardHooks(block)
        self.rehearsal = rehearsal
        self.parts: dict[int, int] = {}
        """How many parts there are, by the number of the leaf: of the inputs that require a gradient, then of the parameters."""
        self.inputs: list[Input] = []
        self.outputs: list[Place] = []
        self.has_gradient: list[bool] = []
        """Of the outputs: whether they are differentiable."""
        self.results: Results | None = None
        self.forward: Recording | None = None
        self.forward_event = -1
        self.backward: Recording | None = None
        self.backward_event = -1
        self.given: list[Input | None] = []
        """Gradients of the outputs; None: that output got none."""
        self.gradients: list[Place | int | None] = []
        """Of the inputs that require one, with their parts, and of the parameters. A number: the gradient of that output."""
        self._differentiable: _Differentiable | None = None

    # -- forward

    def record_forward(self, tensors: Sequence[Tensor]) -> None:
        def forward() -> list[Tensor]:
            found = [self.passes.input_for(tensor) for tensor in tensors]
            self.inputs = [Input(Place(one), source, old.requires_grad) for (one, source), old in zip(found, tensors, strict=True)]
            with self.stand_ins.in_place(), without_kept_casts():
                return self._compute([one for one, _ in found])

        if self.random is not None:
            self.random.note()
        with recording(self.random):
            self.forward = self.recorder.record(forward)
        results = enumerate(self.forward.results)
        self.outputs = [Place(output, number in self.rehearsal.copied) for number, output in results if output is not None]

    def _compute(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_(one.requires_grad) for tensor, one in zip(tensors, self.inputs, strict=True)]
        arguments, keywords = self.structure.put_together(leaves)
        with torch.enable_grad(), self.hooks.watched(put_off=True) as seen:
            returned = self.call(*arguments, **keywords)
        others = [*leaves, *self.stand_ins.leaves, *self.constants]
        self.results, outputs = _results_of(returned, seen, others)
        given = {tensor.untyped_storage()._cdata for tensor in others}
        if any(output.untyped_storage()._cdata in given for output in outputs):
            raise NotPlain("a view of what it was given, as its result")
        self.has_gradient = [output.requires_grad for output in outputs]
        edges = [edge_of(output) for output in outputs if output.requires_grad]
        differentiable = [number for number, leaf in enumerate(leaves) if leaf.requires_grad]
        wanted = [*(leaves[number] for number in differentiable), *self.stand_ins.leaves]
        numbers = [*differentiable, *range(len(leaves), len(leaves) + len(self.parameters))]
        in_parts = [place for place, number in enumerate(numbers) if number in self.rehearsal.in_parts]
        of_parts = {place: parts_of(edges, edge_of(wanted[place])) for place in in_parts}
        self._differentiable = _Differentiable(edges, owners_of(outputs), wanted, of_parts, leaves)
        self.parts = {place: len(parts) for place, parts in of_parts.items()}
        self.leaves_of_parameters = self._part_by_part(self.parameters, len(differentiable))
        behind = {id(node.variable) for node in nodes_behind(edges) if hasattr(node, "variable")}
        if not self.outputs and not behind <= {id(leaf) for leaf in wanted}:
            raise NotPlain("a gradient of something that it keeps elsewhere")
        return [output.detach() for output in outputs]

    def accepts(self, structure: Structure, tensors: Sequence[Tensor]) -> bool:
        """Whether a call with these arguments is the recorded one."""
        if not self.structure.is_like(structure) or not self.conditions.hold():
            return False
        return all(
            tensor.requires_grad is one.requires_grad and one.place.is_like(tensor)
            for tensor, one in zip(tensors, self.inputs, strict=True)
        )

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """The result of the call, by a replay."""
        inputs = [tensor for tensor, one in zip(tensors, self.inputs, strict=True) if one.requires_grad]
        leaves = self._part_by_part(inputs)
        with self._saving_inputs():
            outputs = _Replayed.apply(self, [*tensors], *leaves, *self.leaves_of_parameters)  # type: ignore[no-untyped-call]
        for place, output in zip(self.outputs, outputs, strict=True):
            place.given_to_program(output)
        assert self.results is not None
        returned, shown, modules = self.results
        others = [*tensors, *self.parameters, *self.constants]
        if modules:
            self.hooks.call([*zip(modules, shown.put_together(outputs, others), strict=True)])
        return returned.put_together(outputs, others)

    def _part_by_part(self, leaves: Sequence[Tensor], first: int = 0) -> list[Tensor]:
        """Each leaf as often as its gradient has parts; `first` is the number of the first of them."""
        return [leaf for number, leaf in enumerate(leaves, first) for _ in range(self.parts.get(number, 1))]

    def _saving_inputs(self) -> saved_tensors_hooks:
        """While the node is made: it saves where its inputs come from, and what they contain is read at their places."""
        numbers = count()
        places = [one.place for one in self.inputs if one.requires_grad]
        return saved_tensors_hooks(lambda _: next(numbers), lambda number: places[number].alias().clone())

    def replay_forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        assert self.forward is not None
        for tensor, one in zip(tensors, self.inputs, strict=True):
            self.passes.fill(one, tensor)
        if self.random is not None and not self.forward.results:  # it was noted when it was recorded
            self.random.note()
        self.forward.replay()
        return self._handed_out(self.forward, self.outputs)

    def _handed_out(self, recorded: Recording, places: Sequence[Place]) -> list[Tensor]:
        """Tensors at these places: the results themselves after they were recorded, aliases afterwards; or copies."""
        results = [result for result in recorded.results if result is not None]
        recorded.results.clear()
        if results:
            aliases = [place.first_alias(one) for place, one in zip(places, results, strict=True)]
            self.passes.hand_out(places)
        else:
            aliases = [place.alias() for place in places]
        return [copy_of(one) if place.gives_copies else one for place, one in zip(places, aliases, strict=True)]

    # -- backward

    def run_backward(self, token: Token, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the inputs that require one, and of the parameters."""
        self._check_inputs_of(token)
        if _may_go_backward_again():
            return self._repeat(gradients)
        self.passes.end(token)
        if self.passes.is_recording:
            try:
                self._record_backward(gradients)
            except Exception as error:
                self.passes.spoil(self, error)
                return self._repeat(gradients)
        elif not self._is_as_recorded(gradients) or not self.passes.advance(self.backward_event):
            return self._repeat(gradients)
        return self._replay_backward(gradients)

    def run_differentiable_backward(
        self, token: Token, gradients: Sequence[Tensor | None], inputs: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Gradients that have gradients, as for a penalty on them; `inputs` are those that require one.

        Such gradients add up in another order than in plain training, so that later passes are not replayed.
        """
        self._check_inputs_of(token)
        self.passes.give_up_after_pass("gradients have gradients of their own")
        return self._repeat(gradients, inputs)

    def _check_inputs_of(self, token: Token) -> None:
        if not self.passes.has_inputs_of(token, self.backward_event):
            raise RuntimeError(_NO_BACKWARD)

    def _is_as_recorded(self, gradients: Sequence[Tensor | None]) -> bool:
        if self.backward is None or [gradient is None for gradient in gradients] != [one is None for one in self.given]:
            return False
        return all(
            one.place.is_like(gradient) and not is_to_be_computed(gradient) and one.can_be_filled_with(gradient)
            for gradient, one in zip(gradients, self.given, strict=True)
            if gradient is not None and one is not None
        )

    def _record_backward(self, gradients: Sequence[Tensor | None]) -> None:
        def backward() -> Sequence[Tensor | None]:
            if any(gradient is not None and is_to_be_computed(gradient) for gradient in gradients):
                raise NotPlain("is given a conjugate that is not computed yet")
            found = [None if gradient is None else self.passes.input_for(gradient) for gradient in gradients]
            self.given = [None if pair is None else Input(Place(pair[0]), pair[1]) for pair in found]
            with self.stand_ins.in_place(), without_kept_casts():
                return self._differentiate([pair and pair[0] for pair in found])

        self.backward_event = self.passes.next_event()
        self.backward = self.recorder.record(backward, self.random)
        self._differentiable = None
        for number, one in enumerate(self.backward.results):
            if one is not None:
                self.gradients[number] = Place(one, number + len(self.outputs) in self.rehearsal.copied)

    def _differentiate(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients that are not passed on as they came; `gradients` says which ones are."""
        assert self._differentiable is not None
        edges, leaves, parts = self._differentiable.edges, self._differentiable.leaves, self._differentiable.parts
        of_edges = [gradient for gradient, has_one in zip(gradients, self.has_gradient, strict=True) if has_one]
        pairs = [(GradientEdge(*edge), gradient) for edge, gradient in zip(edges, of_edges, strict=True) if gradient is not None]
        with taken_apart([*parts.values()]) as found, self.hooks.watched(put_off=True):
            results = torch.autograd.grad([edge for edge, _ in pairs], leaves, [one for _, one in pairs], allow_unused=True)
        in_parts = self._in_parts(results, dict(zip(parts, found, strict=True)))
        every = [*zip(in_parts, self._part_by_part(leaves), strict=True)]
        passed_on = [None if isinstance(leaf, nn.Parameter) else _number_of(result, gradients) for result, leaf in every]
        self.gradients = [*passed_on]
        left = [(result if number is None else None, leaf) for number, (result, leaf) in zip(passed_on, every, strict=True)]
        return _apart(left, [one for _, one in pairs])

    def _in_parts(self, results: Sequence[Tensor | None], found: dict[int, list[Tensor | None]]) -> list[Tensor | None]:
        """Gradients, those that were taken apart in their place part by part; parts that backward did not come to are None."""
        every: list[Tensor | None] = []
        for place, result in enumerate(results):
            several = found.get(place, [result])
            every += [*several, *[None] * (self.parts.get(place, 1) - len(several))]
        return every

    def _replay_backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        assert self.backward is not None
        for gradient, one in zip(gradients, self.given, strict=True):
            if gradient is not None and one is not None and not one.place.is_at(gradient):
                copy_content(one.place.alias(), gradient)
        if self.random is not None:
            self.random.prepare()
        self.backward.replay()
        self._differentiable = None
        aliases = iter(self._handed_out(self.backward, [one for one in self.gradients if isinstance(one, Place)]))
        return [next(aliases) if isinstance(one, Place) else None if one is None else gradients[one] for one in self.gradients]

    def _repeat(self, gradients: Sequence[Tensor | None], attached: Sequence[Tensor] | None = None) -> list[Tensor | None]:
        """Gradients by an ordinary second call of the block with the inputs of forward.

        `attached` are those that require a gradient, where the gradients are to have gradients. They and the parameters are looked
        at through views: a parameter may also be what an input was computed from, and that is no part of the block's gradient.
        """
        self.passes.was_repeated = True
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            if self.random is not None:
                stack.enter_context(self.random.as_noted())
            for device, enabled, dtype in self.autocast if self.autocast != autocast_modes() else ():
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            stack.callback(put_back, set_statistics_aside(self.block))
            parameters: Sequence[Tensor] = self.parameters
            if attached is not None:
                parameters = stack.enter_context(self.stand_ins.views_in_place())
            given = iter(attached or ())
            leaves = [self._input_again(one, next(given, None) if one.requires_grad else None) for one in self.inputs]
            arguments, keywords = self.structure.put_together(leaves)
            seen = stack.enter_context(self.hooks.watched(put_off=True))
            others = [*leaves, *parameters, *self.constants]
            _, outputs = _results_of(self.call(*arguments, **keywords), seen, others)
        pairs = [(output, gradient) for output, gradient in zip(outputs, gradients, strict=True) if gradient is not None]
        wanted = [*(leaf for leaf in leaves if leaf.requires_grad), *parameters]
        edges = [edge_of(output) for output, _ in pairs]
        parts = {place: parts_of(edges, edge_of(wanted[place])) for place in (self.parts if attached is None else ())}
        with taken_apart([*parts.values()]) as found, self.hooks.watched(put_off=True):
            results = torch.autograd.grad(
                [one for one, _ in pairs], wanted, [one for _, one in pairs], allow_unused=True, create_graph=attached is not None
            )
        return self._in_parts(results, dict(zip(parts, found, strict=True)))

    def _input_again(self, one: Input, attached: Tensor | None) -> Tensor:
        if attached is not None:
            return attached.view_as(attached)
        return one.place.alias().clone().requires_grad_(one.requires_grad)

    @property
    def places(self) -> list[Place]:
        """Of the tensors that are handed out."""
        return [*self.outputs, *(one for one in self.gradients if isinstance(one, Place))]

    def move_parameter_gradients(self) -> None:
        """Gives `parameter.grad` memory of its own, where it lies in that of the recording."""
        parameters = self.leaves_of_parameters
        for parameter, place in zip(parameters, self.gradients[len(self.gradients) - len(parameters) :], strict=False):
            if isinstance(place, Place) and place.is_held and (gradient := parameter.grad) is not None and place.is_under(gradient):
                gradient.data = gradient.clone()  # somebody may hold the very tensor, as one that goes on to be the gradient

    def vacate_places(self) -> frozenset[int]:
        """Gives what a program still holds memory of its own; returns which results and gradients are to be copied from now on."""
        places = [*self.outputs, *self.gradients]
        for place in self.places:
            place.vacate()
        return frozenset(number for number, place in enumerate(places) if isinstance(place, Place) and place.gives_copies)

    def end_recording(self) -> None:
        """The recorded pass is over: what its backward has not come to is given back."""
        self._differentiable = None


def _results_of(returned: Any, seen: Sequence[Seen], others: Sequence[Tensor]) -> tuple[Results, list[Tensor]]:
    """What a call returns and shows, and the tensors that it has computed: those that are not `others`."""
    if any(one.is_overwritten for one in seen):
        raise NotPlain("something that a hook has seen and that is changed in place afterwards")
    outputs: list[Tensor] = []
    numbers = {id(tensor): ~number for number, tensor in enumerate(others)}

    def values(item: Any) -> Values:
        structure, tensors = take_apart(item)
        for tensor in tensors:
            if id(tensor) not in numbers:
                numbers[id(tensor)] = len(outputs)
                outputs.append(tensor)
        return Values(structure, [numbers[id(tensor)] for tensor in tensors])

    return Results(values(returned), values([one.values for one in seen]), [one.module for one in seen]), outputs


def _number_of(result: Tensor | None, given: Sequence[Tensor | None]) -> int | None:
    """Which of the given gradients a result is; None: another tensor."""
    for number, one in enumerate(given):
        if result is None or one is None or is_to_be_computed(result):
            continue
        if Place(one).is_at(result) and result.dtype is one.dtype:
            return number
    return None


def _apart(results: Sequence[tuple[Tensor | None, Tensor]], given: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients in memory of their own, those of parameters in the layout that autograd wants to keep them in.

    `results` are gradients with their leaves.
    """
    taken = {tensor.untyped_storage()._cdata for tensor in given}
    apart: list[Tensor | None] = []
    for result, leaf in results:
        one = result
        if one is not None:
            if one.layout is not torch.strided or is_to_be_computed(one):
                raise NotPlain("a gradient that is not plain numbers in memory")
            if isinstance(leaf, nn.Parameter) and one.stride() != leaf.stride():  # else `parameter.grad` would be a copy
                one = torch.empty_like(leaf).copy_(one)
            elif one.untyped_storage()._cdata in taken:
                one = one.clone()
            taken.add(one.untyped_storage()._cdata)
        apart.append(one)
    return apart


_NO_BACKWARD = "a replayed block went backward already, or another pass has begun since: write replay=False to go backward twice"


def _may_go_backward_again() -> bool:
    """Whether this backward keeps its graph."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


class _Replayed(torch.autograd.Function):
    """A recorded call in the graph of autograd; what else is differentiable is between such calls."""

    @staticmethod
    def forward(ctx: Any, call: RecordedCall, tensors: list[Tensor], *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.token = call, call.passes.new_token(call.backward_event)
        inputs = leaves[: len(leaves) - len(call.leaves_of_parameters)]
        ctx.keeps_gradient = [tensor.is_leaf for tensor in inputs]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(tensor for tensor in tensors if tensor.requires_grad))
        outputs = call.replay_forward(tensors)
        ctx.mark_non_differentiable(*(one for one, has_one in zip(outputs, call.has_gradient, strict=True) if not has_one))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        call: RecordedCall | None = ctx.call
        if call is None:
            raise RuntimeError(_NO_BACKWARD)
        if torch.is_grad_enabled():
            return (None, None, *call.run_differentiable_backward(ctx.token, gradients, ctx.saved_tensors))
        results = call.run_backward(ctx.token, gradients)
        if not _may_go_backward_again():  # a program may keep a result, and its graph, for longer than the recording lasts
            ctx.call = None
        for number, keeps in enumerate(ctx.keeps_gradient):  # as its attribute `grad`, for longer than the place is its own
            if keeps and (result := results[number]) is not None:
                results[number] = result.clone()
        return (None, None, *results)
