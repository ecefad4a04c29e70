"""A handler's argument (`Call`) and result (`Piece`), and the registry of users' handlers. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainyard.errors import BadInput
from trainyard.ir import Body, Phase, Routing

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Call:
    """One dispatched op after it ran: its arguments, and the tensors among them and among its results.

    Of `unread` inputs it takes the shape alone, as `zeros_like` does.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: list[Tensor]
    outputs: list[Tensor]
    unread: list[Tensor] = field(default_factory=list)

    def reads(self, tensor: Any) -> bool:
        return not any(tensor is other for other in self.unread)

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        """An argument by position or by keyword, as the schema allows both."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


@dataclass(slots=True, eq=False)
class OnChip:
    """A tensor inside a fused kernel: it has a shape and never reaches memory on its own."""

    shape: tuple[int, ...]
    dtype: Any


@dataclass(slots=True)
class Piece:
    """One of the ops that a dispatched op is recorded as. `inputs` and `outputs` default to those of the call.

    A product names its two operands first. `phase` is given where the handler knows it better than the operands do. Pieces with
    `fused` are computed by one kernel without leaving the chip. A grouped product has all its rows in `body`, and `routing` says
    how they are divided over groups.
    """

    body: Body
    inputs: tuple[Any, ...] | None = None
    outputs: tuple[Any, ...] | None = None
    phase: Phase | None = None
    fused: bool = False
    name: str = ""
    routing: Routing | None = None


HandlerResult = Body | Piece | Iterable[Body | Piece]
Handler = Callable[[Call], HandlerResult]


@dataclass(slots=True)
class Registry:
    """Handlers that users registered, by op name."""

    handlers: dict[str, Handler] = field(default_factory=dict)

    def find(self, overload: str) -> Handler | None:
        """The handler of `aten.foo.default`, or of all overloads `aten.foo`."""
        return self.handlers.get(overload) or self.handlers.get(overload.rpartition(".")[0])


USERS = Registry()


def register(name: str, handler: Handler) -> None:
    """Teaches capture an op: `handler(call)` returns its body, a `Piece`, or several of them.

    `name` is what the error printed, `aten.foo.default`, or `aten.foo` for all its overloads. `call.inputs` and `call.outputs`
    are the tensors (shapes only), `call.args` and `call.kwargs` the arguments.

    >>> from trainyard.ir import ElementWise
    >>> register("mylib.swish.default", lambda call: ElementWise("swish", call.outputs[0].numel(), operations=5))
    """
    parts = name.split(".")
    if len(parts) not in (2, 3) or not all(parts):
        raise BadInput(f"an op is registered as 'namespace.op' or 'namespace.op.overload', got {name!r}")
    if not callable(handler):
        raise BadInput(f"the handler of {name!r} must be callable, got {type(handler).__name__}")
    USERS.handlers[name] = handler
