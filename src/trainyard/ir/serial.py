"""Steps as versioned JSON: lists of integers that index tables of distinct bodies and names; equal steps give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from trainyard.errors import BadInput, TrainyardError
from trainyard.ir.ops import BODIES, Body
from trainyard.ir.routing import Routing
from trainyard.ir.step import Op, Phase, Role, Step, TensorSpec

FORMAT = "trainyard.step"
VERSION = 1


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
            int(op.recompute), list(op.inputs), list(op.outputs), words.number(",".join(op.letters) if op.letters else "-"),
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


def from_json(text: str | bytes) -> Step:
    try:
        document = json.loads(text)
    except RecursionError:
        raise BadInput("not a step file: lists nest too deep") from None
    except ValueError as error:  # invalid JSON or text, or an integer of thousands of digits
        raise BadInput(f"not a step file: {str(error)[:200]}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadInput(f"not a step file: its 'format' is not '{FORMAT}'")
    if document.get("version") != VERSION:
        raise BadInput(
            f"step file of version {repr(document.get('version'))[:20]}: this release reads version {VERSION}; "
            "capture the step again or update trainyard"
        )
    try:
        return _step(document)
    except TrainyardError as error:
        raise BadInput(f"damaged step file: {error}") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"damaged step file: {type(error).__name__}: {error}") from None


def _step(document: Mapping[str, Any]) -> Step:
    words: Sequence[str] = document["words"]
    notes = document.get("notes", [])
    if not all(isinstance(word, str) for word in (*words, document["name"], document["source"], *notes)):
        raise BadInput("a name is no text")
    bodies = [_body(row) for row in document["bodies"]]
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
            recompute=bool(recompute), inputs=_integers(inputs), outputs=_integers(outputs),
            letters=_letters(words[letters]), fused=_optional_integer(fused), slope=_integers(slope or ()),
            routing=_routing(routing),
        )
        for body, name, layer, call, phase, recompute, inputs, outputs, letters, fused, slope, *routing in document["ops"]
    )  # fmt: skip
    world, replicas = document.get("ranks", (1, 1))
    rebatchable = bool(document["rebatchable"])
    return Step(document["name"], document["batch"], ops, tensors, document["source"], rebatchable, world, replicas, tuple(notes))


def _routing_row(routing: Routing | None) -> list[list[Any]]:
    return [] if routing is None else [[routing.axis, routing.rows, routing.groups, routing.slope]]


def _routing(rows: list[Any]) -> Routing | None:
    if not rows:
        return None
    ((axis, *numbers),) = rows
    return Routing(axis, *_integers(numbers))


def _optional_integer(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise BadInput(f"{str(value)[:20]!r} is no whole number")
    return value


def _integers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or any(type(value) is not int for value in values):
        raise BadInput(f"{str(values)[:40]!r} is no list of whole numbers")
    return tuple(values)


def _letters(text: str) -> tuple[Any, ...]:
    return () if text == "-" else tuple(text.split(","))


def _body(row: Sequence[Any]) -> Body:
    kind: Callable[..., Body] = BODIES[row[0]]
    names = (field.name for field in fields(BODIES[row[0]]))
    values = (tuple(value) if isinstance(value, list) else value for value in row[1:])
    return kind(**dict(zip(names, values, strict=True)))
