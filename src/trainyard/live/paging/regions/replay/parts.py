"""Gradients that are sums of several parts, and how the order of the sum stays that of plain training.

Autograd adds up the parts of a tensor's gradient as it computes them, those of later ops first. If a block computes two for its
input, and something after the block computes another (a skip connection, a feature pyramid), plain training has
(later + first) + second. A node that returns the sum of its own parts has later + (first + second), which rounds differently. So
for such an input the backward of a recorded call returns the parts one by one, and autograd adds them up as ever. The same is done
for a parameter that a block uses twice, if it is used again after that, as where the block is called several times.

Autocast casts a weight once, and plain training adds up the gradients of that cast, in bfloat16. A recorded call makes casts of its
own. So a block is not recorded if a cast weight of it is used more than once.

The rehearsed pass says what is used later. If a program calls other blocks in some passes, these sums may be rounded differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainyard.live.paging.signature import autocast_modes

Edge = tuple[Any, int]
"""A node of autograd, and which of its gradients."""
_CAST = "ToCopyBackward0"


class Part(NamedTuple):
    """A node that computes a part of a gradient, and which of its results that is."""

    node: Any
    place: int


def edge_of(tensor: Tensor) -> Edge:
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def owners_of(outputs: Sequence[Tensor]) -> list[Any]:
    """Nodes that keep the graph behind outputs alive: one that is written in Python, as of compiled code, does not with 2.11."""
    with torch.enable_grad():
        return [output.view_as(output).grad_fn for output in outputs if isinstance(output.grad_fn, torch._C._FunctionBase)]


def nodes_behind(outputs: Sequence[Edge], before: Collection[Any] = ()) -> Iterator[Any]:
    """Nodes of autograd that outputs lead to, without some and what is behind them."""
    stack, seen = [node for node, _ in outputs], set[Any](before)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack += [following for following, _ in node.next_functions if following is not None]


def parts_of(outputs: Sequence[Edge], tensor: Edge) -> list[Part]:
    """The parts of a tensor's gradient that nodes behind these outputs compute.

    >>> x = torch.ones(3, requires_grad=True)
    >>> y = x + x.exp()
    >>> [part.node.name() for part in parts_of([edge_of(y)], edge_of(x))]
    ['AddBackward0', 'ExpBackward0']
    """
    nodes = nodes_behind(outputs, {tensor[0]})
    return [Part(node, place) for node in nodes for place, edge in enumerate(node.next_functions) if edge == tensor]


class Leaf(NamedTuple):
    """An input or a parameter of a rehearsed call whose gradient has several parts inside, or the cast of a parameter."""

    number: int
    """Among the inputs, and the parameters after them; of a cast: -1."""
    edge: Edge
    last: int
    """Number of the last node that the call made."""


CAST = -1


def leaves_in_parts(inputs: Sequence[Tensor], parameters: Sequence[Tensor], outputs: Sequence[Tensor], last: int) -> list[Leaf]:
    """Of a call with these inputs, whose last node is number `last`."""
    edges = [edge_of(output) for output in outputs if output.requires_grad]
    of_leaves = {edge_of(tensor): number for number, tensor in enumerate((*inputs, *parameters)) if tensor.requires_grad}
    uses: Counter[Edge] = Counter()
    found: list[Leaf] = []
    for node in nodes_behind(edges, before={node for node, _ in of_leaves}):
        uses.update(edge for edge in node.next_functions if edge in of_leaves)
        if keeps_casts() and node.name() == _CAST and hasattr(node.next_functions[0][0], "variable"):
            found.append(Leaf(CAST, (node, 0), last))
    return found + [Leaf(number, edge, last) for edge, number in of_leaves.items() if uses[edge] > 1]


def keeps_casts() -> bool:
    """Whether autocast gives a cast that it made of a parameter to who asks for it again."""
    return torch.is_autocast_cache_enabled() and any(enabled for _, enabled, _ in autocast_modes())


def used_later(leaves: Sequence[Leaf], result: Sequence[Tensor]) -> frozenset[int]:
    """Those that something after their call has used, or casts that are used twice, as the graph behind a model's result says."""
    last_use: dict[Edge, int] = dict.fromkeys((one.edge for one in leaves), -1)
    uses: Counter[Edge] = Counter()
    for node in nodes_behind([edge_of(tensor) for tensor in result if tensor.requires_grad]):
        for edge in node.next_functions:
            if edge in last_use:
                last_use[edge] = max(last_use[edge], node._sequence_nr())
                uses[edge] += 1
    return frozenset(one.number for one in leaves if (uses[one.edge] > 1 if one.number == CAST else last_use[one.edge] > one.last))


@contextmanager
def taken_apart(parts: Sequence[Sequence[Part]]) -> Iterator[list[list[Tensor | None]]]:
    """While gradients are computed: the parts of some of them, in the order in which they are, and none for autograd to add up.

    >>> x = torch.ones(3, requires_grad=True)
    >>> y = 2 * x + x.exp()
    >>> with taken_apart([parts_of([edge_of(y)], edge_of(x))]) as [found]:
    ...     torch.autograd.grad(y.sum(), [x], allow_unused=True)
    (None,)
    >>> [float(part[0]) for part in found]
    [2.7182817459106445, 2.0]
    """
    found: list[list[Tensor | None]] = [[] for _ in parts]
    with ExitStack() as stack:
        for several, into in zip(parts, found, strict=True):
            places: dict[Any, list[int]] = {}
            for part in several:
                places.setdefault(part.node, []).append(part.place)
            for node, taken in places.items():
                stack.callback(node.register_hook(partial(_take, taken, into)).remove)
        yield found


def _take(places: list[int], into: list[Tensor | None], gradients: tuple[Tensor | None, ...], _: Any) -> tuple[Tensor | None, ...]:
    into.extend(gradients[place] for place in places)
    return tuple(None if place in places else gradient for place, gradient in enumerate(gradients))
