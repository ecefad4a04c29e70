"""Steps as versioned JSON: lists of integers that index tables of distinct bodies and names; equal steps give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from trainyard.errors import BadInput, TrainyardError, quoted
from trainyard.ir.ops import BODIES, Body
from trainyard.ir.routing import Routing
from trainyard.ir.step import Layout, Op, Phase, Role, Step, TensorSpec
from trainyard.reading import parse_json, reader, reason

FORMAT = "trainyard.step"
VERSION = 1
LAYOUTS = tuple(Layout)


class _Table(dict[Hashable, int]):
    """Numbers distinct values in order of first use."""

    def number(self, value: Hashable) -> int:
        return self.setdefault(value, len(self))


def to_json(step: Step) -> str:
    words, bodies = _Table(), _Table()
    tensors = [
        [
            list(t.shape),
            words.number(t.dtype),
            words.number(str(t.role)),
            words.number(t.name),
            t.view_of,
            list(t.slope) or 0,
            *([1] if t.channels_last else []),
        ]
        for t in step.tensors
    ]
    ops = [
        [
            bodies.number(op.body), words.number(op.name), words.number(op.layer), op.call, words.number(str(op.phase)),
            _flags(op), list(op.inputs), list(op.outputs), words.number(",".join(op.letters) if op.letters else "-"),
            op.fused, list(op.slope) or 0, *_routing_row(op.routing),
        ]
        for op in step.ops
    ]  # fmt: skip
    document = {
        "format": FORMAT,
        "version": VERSION,
        "name": step.name,
        "batch": step.batch,
        "source": step.source,
        "rebatchable": step.rebatchable,
        **({"ranks": [step.world, step.replicas]} if step.world > 1 else {}),
        **({"notes": list(step.notes)} if step.notes else {}),
        "words": list(words),
        "bodies": [[type(body).__name__, *(getattr(body, f.name) for f in fields(body))] for body in bodies],  # type: ignore[arg-type]
        "tensors": tensors,
        "ops": ops,
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


@reader("step", source="text")
def from_json(text: str | bytes) -> Step:
    """The step of a JSON text."""
    try:
        document = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not a step file: {error if isinstance(error, BadInput) else reason(error)}") from None
    return from_document(document)


def from_document(document: Any) -> Step:
    """The step of a JSON object that has been read."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadInput(f"not a step file: its 'format' is not '{FORMAT}'")
    if document.get("version") != VERSION:
        raise BadInput(
            f"step file of version {quoted(document.get('version'), 20)}: this release reads version {VERSION}; "
            "capture the step again or update trainyard"
        )
    try:
        return _step(document)
    except TrainyardError as error:
        raise BadInput(f"damaged step file: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BadInput(f"damaged step file: {reason(error)}") from None


def _step(document: Mapping[str, Any]) -> Step:
    words: Sequence[str] = document["words"]
    notes = document.get("notes", [])
    if not all(isinstance(word, str) for word in (*words, document["name"], document["source"], *notes)):
        raise BadInput("a name is no text")
    bodies = [_body(number, row) for number, row in enumerate(document["bodies"])]
    tensors = tuple(
        TensorSpec(
            tuple(shape), words[dtype], Role(words[role]), words[name], _optional_integer(view_of), _integers(slope or ()),
            channels_last=_integers(form) == (1,),
        )
        for shape, dtype, role, name, view_of, slope, *form in document["tensors"]
    )  # fmt: skip
    ops = tuple(
        Op(
            body=bodies[body], name=words[name], layer=words[layer], call=_integers([call])[0], phase=Phase(words[phase]),
            recompute=bool(flags & 1), inputs=_integers(inputs), outputs=_integers(outputs),
            letters=_letters(words[letters]), fused=_optional_integer(fused), slope=_integers(slope or ()),
            routing=_routing(routing), host_waits=bool(flags & 2), layout=_layout(flags),
        )
        for body, name, layer, call, phase, flags, inputs, outputs, letters, fused, slope, *routing in document["ops"]
    )  # fmt: skip
    world, replicas = document.get("ranks", (1, 1))
    rebatchable = bool(document["rebatchable"])
    return Step(document["name"], document["batch"], ops, tensors, document["source"], rebatchable, world, replicas, tuple(notes))


def _flags(op: Op) -> int:
    """Whether it is a recomputation, whether the host waits before it, and the layout of its operands."""
    return op.recompute | op.host_waits << 1 | LAYOUTS.index(op.layout) << 2


def _layout(flags: int) -> Layout:
    if not 0 <= flags < 4 * len(LAYOUTS):
        raise BadInput(f"{quoted(flags, 20)} is none of an op's flags, 0 to {4 * len(LAYOUTS) - 1}")
    return LAYOUTS[flags >> 2]


def _routing_row(routing: Routing | None) -> list[list[Any]]:
    return [] if routing is None else [[routing.axis, routing.rows, routing.groups, routing.slope]]


def _routing(rows: list[Any]) -> Routing | None:
    if not rows:
        return None
    ((axis, *numbers),) = rows
    return Routing(axis, *_integers(numbers))


def _optional_integer(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise BadInput(f"{quoted(value, 20)} is no whole number")
    return value


def _integers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or any(type(value) is not int for value in values):
        raise BadInput(f"{quoted(values, 40)} is no list of whole numbers")
    return tuple(values)


def _letters(text: str) -> tuple[Any, ...]:
    return () if text == "-" else tuple(text.split(","))


def _body(number: int, row: Any) -> Body:
    if not isinstance(row, list) or not row or not isinstance(row[0], str) or row[0] not in BODIES:
        raise BadInput(f"bodies[{number}]: expected a list that begins with one of {', '.join(BODIES)}, got {quoted(row, 40)}")
    kind: Callable[..., Body] = BODIES[row[0]]
    names = [field.name for field in fields(BODIES[row[0]])]
    if len(names) != len(row) - 1:
        raise BadInput(f"bodies[{number}]: {row[0]} has {len(names)} numbers ({', '.join(names)}), got {len(row) - 1}")
    values = (tuple(value) if isinstance(value, list) else value for value in row[1:])
    try:
        return kind(**dict(zip(names, values, strict=True)))
    except (TypeError, ValueError, ArithmeticError) as error:
        problem = error if isinstance(error, TrainyardError) else reason(error)
        raise BadInput(f"bodies[{number}]: {problem}") from None
