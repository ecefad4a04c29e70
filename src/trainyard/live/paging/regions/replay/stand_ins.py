"""Parameters of a block while it is recorded: tensors in the same memory, with a place of their own in the graph of autograd.

Autograd adds gradients up on the stream on which it met a parameter first, and remembers that as long as any graph with the
parameter lives, a loss that a program still holds, for example. A recording must not wait for another stream. And hooks of a
parameter belong to the step, not to the recording inside of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class StandIns:
    """Of the parameters of a block that require gradients.

    >>> block = nn.Linear(2, 2)
    >>> stand_ins = StandIns(block)
    >>> with stand_ins.in_place():
    ...     block.weight is stand_ins.leaves[0], block.weight.data_ptr() == stand_ins.parameters[0].data_ptr()
    (True, True)
    >>> block.weight is stand_ins.parameters[0]
    True
    """

    def __init__(self, block: nn.Module) -> None:
        self.parameters = trained(block)
        self.leaves = [_stand_in(parameter) for parameter in self.parameters]
        self._slots: list[tuple[dict[str, Any], str, nn.Parameter]] = [
            (module._parameters, name, parameter)
            for module in block.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None and parameter.requires_grad
        ]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The modules of the block have the stand-ins."""
        with self._replaced({id(parameter): leaf for parameter, leaf in zip(self.parameters, self.leaves, strict=True)}):
            yield

    @contextmanager
    def views_in_place(self) -> Iterator[list[Tensor]]:
        """The modules of the block have views of their parameters, in the order of these."""
        views = [parameter.view_as(parameter) for parameter in self.parameters]
        with self._replaced({id(parameter): view for parameter, view in zip(self.parameters, views, strict=True)}):
            yield views

    @contextmanager
    def _replaced(self, tensors: dict[int, Tensor]) -> Iterator[None]:
        for holder, name, parameter in self._slots:
            holder[name] = tensors[id(parameter)]
        try:
            yield
        finally:
            for holder, name, parameter in self._slots:
                holder[name] = parameter


def trained(block: nn.Module) -> list[nn.Parameter]:
    """The parameters that get gradients."""
    return [parameter for parameter in block.parameters() if parameter.requires_grad]


def _stand_in(parameter: nn.Parameter) -> nn.Parameter:
    leaf = nn.Parameter(parameter.detach(), requires_grad=True)
    leaf.__dict__.update(parameter.__dict__)
    return leaf
