"""From text, tables and overrides to machines, and back to tables (`describe`).

A key is a field, or a field without its unit (`dram` for `dram_bytes_per_s`). A name in the place of a part is a machine, the
part of that kind inside a machine, or a part type: `npu(array=tensordash)` keeps npu's clock, scratchpad and DRAM.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from trainyard.errors import BadInput, TrainyardError, UnknownName, quoted
from trainyard.machines.fields import field_named, fit, hints, members, settable, stem
from trainyard.machines.grammar import Call, Term, parse
from trainyard.machines.registry import MACHINES, Kind, kind_of, loaded_presets, part_class, part_names, preset, type_name
from trainyard.reading import reader
from trainyard.units import unit_of_field

_PROTOCOL_KINDS: Mapping[str, Kind] = {"Array": "array", "Device": "device", "System": "system"}


@reader("machine", source="what")
def machine(what: Any) -> Any:
    """The machine that a text, a file (.toml, or SCALE-Sim's .cfg) or an object means.

    >>> machine("npu(dram=75 GB/s)").dram_bytes_per_s
    75000000000.0
    """
    if isinstance(what, os.PathLike):
        what = str(what)
    if not isinstance(what, str):
        return _checked(what, repr(type(what).__name__))
    if what in MACHINES:  # the usual case needs no grammar
        return preset(what)
    call = parse(what)
    return _checked(_top(call), f"'{call.name}'")


def _top(call: Call) -> Any:
    changes = dict(call.arguments)
    if _is_file(call.name):
        return _changed(_loaded(call.name), changes, "")
    if call.name in MACHINES:
        return _changed(preset(call.name), changes, "")
    if call.name in part_names():
        return _constructed(part_class(call.name), changes, "") if changes else part_class(call.name)
    if os.path.exists(call.name) or os.sep in call.name:
        raise BadInput(f"'{call.name}' is not a machine file: its name must end in .toml or .cfg")
    raise UnknownName("machine", call.name, {*MACHINES, *_parts_of("device"), *_parts_of("system")})


def _parts_of(kind: Kind) -> Iterator[str]:
    return (name for name in part_names() if kind_of(part_class(name)) == kind)


def _is_file(name: str) -> bool:
    return name.endswith((".toml", ".cfg"))


def _loaded(file: str) -> Any:
    if file.endswith(".cfg"):
        from trainyard.machines.scalesim import read_cfg

        return read_cfg(file)
    from trainyard.machines.files import load_toml

    return load_toml(file)


def _checked(candidate: Any, name: str) -> Any:
    kind = kind_of(candidate)
    if kind == "array":
        raise BadInput(f"{name} is an array, not a machine: put it into one, as in npu(array={type_name(_class(candidate))})")
    if kind == "part":
        raise BadInput(f"{name} is not a machine: expected a device, a system, or a name such as npu")
    return _constructed(candidate, {}, "") if isinstance(candidate, type) else candidate


def _class(candidate: object) -> type:
    return candidate if isinstance(candidate, type) else type(candidate)


def title(machine: Any) -> str:
    """A short name of a machine object: its preset's name, or its type and its array's."""
    for name, preset_machine in loaded_presets():
        if preset_machine is machine or (type(preset_machine) is type(machine) and preset_machine == machine):
            return name
    inner = getattr(machine, "array", None) or getattr(machine, "device", None)
    own = type_name(_class(machine)).rpartition(":")[2]
    return own if inner is None else f"{own}({title(inner)})"


@reader("changes of a machine", source="changes")
def with_overrides(machine: Any, changes: Mapping[str, Any]) -> Any:
    """The machine with fields changed by path: `{"array.rows": 64, "dram": "75 GB/s", "array": "tensordash"}`."""
    return _changed(machine, changes, "")


@reader("table of a machine", source="table")
def from_table(table: Mapping[str, Any], path: str = "") -> Any:
    """A part from a nested table: `type` names its class, or `base` the machine that the other keys change."""
    rest = dict(table)
    kind, base = rest.pop("type", None), rest.pop("base", None)
    if kind is not None and base is not None:
        raise BadInput(f"{path or 'machine: '}both type and base are given: type starts from nothing, base from a machine")
    for key, name in (("type", kind), ("base", base)):
        if name is not None and not isinstance(name, str):
            raise BadInput(f"{path}{key}: expected a name, got {quoted(name)}")
    if base is not None:
        return _changed(_with_path(lambda: machine(base), f"{path}base."), rest, path)
    if kind is None:
        raise BadInput(f'{path}no type given: write type = "accelerator" (or base = "npu" to start from a machine)')
    return _constructed(part_class(kind, path), rest, path)


def _changed(part: Any, changes: Mapping[str, Any], path: str) -> Any:
    if not changes:
        return part
    owner: type = type(part)
    own, inner = _by_field(owner, changes, path, part)
    new = {name: _value(owner, name, value, getattr(part, name), path) for name, value in own.items()}
    for name, below in inner.items():
        current = new.get(name, getattr(part, name))
        if isinstance(current, Mapping):
            new[name] = _value(owner, name, {**current, **below}, current, path)
        elif is_dataclass(current):
            new[name] = _changed(current, below, f"{path}{name}.")
        elif isinstance(current, tuple) and current and all(hasattr(one, "name") for one in current):
            new[name] = _changed_by_name(current, below, f"{path}{name}.")
        elif current is None and any(_is_mapping(option) for option in members(hints(owner)[name])):
            new[name] = _value(owner, name, below, None, path)  # a table of which nothing was given yet
        else:
            raise BadInput(f"{path}{name}: {quoted(current)} has no fields inside (asked for {', '.join(below)})")
    return _with_path(lambda: replace(part, **new), path)


def _changed_by_name(parts: tuple[Any, ...], changes: Mapping[str, Any], path: str) -> tuple[Any, ...]:
    """Parts of a list changed by their names: `levels.local.size`."""
    by_name: dict[str, dict[str, Any]] = {}
    owner: type = type(parts[0])
    for key, value in changes.items():
        name, _, field = key.partition(".")
        if name not in [part.name for part in parts]:
            raise UnknownName("part", name, [part.name for part in parts], path.rstrip("."))
        if not field:
            raise BadInput(f"{path}{name}: give a field of it, such as {path}{name}.{next(iter(settable(owner)))}")
        by_name.setdefault(name, {})[field] = value
    return tuple(_changed(part, by_name.get(part.name, {}), f"{path}{part.name}.") for part in parts)


def _is_mapping(hint: Any) -> bool:
    return isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping)


def _constructed(part: type, arguments: Mapping[str, Any], path: str) -> Any:
    reads: Callable[[Mapping[str, Any]], Any] | None = getattr(part, "from_table", None)
    if reads is not None:  # a part with a table of its own, such as a graph
        return _with_path(lambda: reads(arguments), path)
    own, inner = _by_field(part, arguments, path)
    if inner:
        raise BadInput(f"{path}{next(iter(inner))}: give the part as a whole, or start from a machine")
    new = {name: _value(part, name, value, None, path) for name, value in own.items()}
    needed = [
        f.name for f in settable(part).values() if f.default is MISSING and f.default_factory is MISSING and f.name not in new
    ]
    if needed:
        written = ",".join(f"{stem(name)}=..." for name in needed)
        raise BadInput(f"{path}{type_name(part)} needs {', '.join(needed)}: write {type_name(part)}({written},...)")
    return _with_path(lambda: part(**new), path)


def _by_field(
    part: type, changes: Mapping[str, Any], path: str, current: Any = None
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Changes of whole fields, and of fields inside fields."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        head, _, rest = str(key).partition(".")
        name = field_named(part, head, None if rest else value, path, None if current is None else _deeper(current, head))
        if rest:
            inner.setdefault(name, {})[rest] = value
        elif name in own:
            raise BadInput(f"{path}{key}: {name} is given twice")
        else:
            own[name] = value
    return own, inner


def _deeper(part: Any, key: str) -> str | None:
    """Where a key stands if a part inside has it: `array.rows` for `rows`."""
    part_type: type = type(part)
    inside = {name: getattr(part, name) for name in settable(part_type) if is_dataclass(getattr(part, name))}
    for name, inner in inside.items():
        below: type = type(inner)
        if any(key in (field, stem(field)) for field in settable(below)):
            return f"{name}.{key}"
    deeper = ((name, _deeper(inner, key)) for name, inner in inside.items())
    return next((f"{name}.{path}" for name, path in deeper if path), None)


def _with_path(build: Callable[[], Any], path: str) -> Any:
    try:
        return build()
    except TrainyardError as error:
        if not path or str(error).startswith(path):
            raise
        raise BadInput(f"{path.rstrip('. ')}: {error}".replace("::", ":")) from None


def _value(part: type, name: str, value: Any, current: Any, path: str) -> Any:
    """What a field is set to: a part, or a plain value of the field's type."""
    hint, here = hints(part)[name], f"{path}{name}"
    kind = _part_wanted(hint, current)
    if kind is None:
        if isinstance(value, Call) and get_origin(hint) is tuple and is_dataclass(get_args(hint)[0]):
            value = (value,)  # a list of one part
        if isinstance(value, Call):
            raise BadInput(f"{here}: '{value.name}(...)' is a part, but {_only(hint)} is expected")
        return fit(_plain(value), hint, unit_of_field(name), here)
    if isinstance(value, str | Call):
        if isinstance(value, str) and (plain := _as_plain(value, hint, here)) is not _NOT_PLAIN:
            return plain
        return _named(value if isinstance(value, Call) else parse(value), name, kind, hint, current, here)
    if isinstance(value, Mapping):
        if isinstance(value.get("base"), str) and "type" not in value:  # a base lends its part, as a name does
            lent = _named(parse(value["base"]), name, kind, hint, current, here)
            return _changed(lent, {key: item for key, item in value.items() if key != "base"}, f"{here}.")
        if "type" in value or "base" in value:
            return _suited(from_table(value, f"{here}."), kind, hint, here)
        if is_dataclass(current):
            return _changed(current, value, f"{here}.")
        raise BadInput(f"{here}: no type given: write type = ... or base = ... in it")
    if value is None and type(None) in members(hint):
        return None
    return _suited(value, kind, hint, here)


_NOT_PLAIN = object()


def _as_plain(value: str, hint: Any, path: str) -> Any:
    """The text as the plain alternative of a union (`str | Part`, `Part | None`), if it is one."""
    for option in members(hint):
        if option in (str, type(None)) or get_origin(option) is Literal:
            try:
                return fit(value, option, None, path)
            except TrainyardError:
                continue
    return _NOT_PLAIN


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _part_wanted(hint: Any, current: Any) -> Kind | None:
    """The kind of part that a field holds, None for a plain value."""
    for option in members(hint):
        name = getattr(option, "__name__", "")
        if getattr(option, "_is_protocol", False):
            return _PROTOCOL_KINDS.get(name, "part")
        if isinstance(option, type) and is_dataclass(option):
            return kind_of(option)
    return kind_of(current) if is_dataclass(current) else None


def _only(hint: Any) -> str:
    options = [o for option in members(hint) for o in (get_args(option) if get_origin(option) is Literal else (option,))]
    return " or ".join(str(getattr(option, "__name__", option)) for option in options)


def _a(kind: Kind) -> str:
    return f"an {kind}" if kind == "array" else f"a {kind}"


def _suited(candidate: Any, kind: Kind, hint: Any, path: str) -> Any:
    classes = tuple(option for option in members(hint) if isinstance(option, type) and is_dataclass(option))
    if not is_dataclass(candidate) or isinstance(candidate, type) or (kind != "part" and kind_of(candidate) != kind):
        what = _a(kind_of(candidate)) if is_dataclass(candidate) else quoted(candidate)
        raise BadInput(f"{path}: expected {_a(kind)}, got {what}")
    if (
        classes
        and not any(getattr(option, "_is_protocol", False) for option in members(hint))
        and not isinstance(candidate, classes)
    ):
        raise BadInput(f"{path}: expected {_only(hint)}, got {type(candidate).__name__}")
    return candidate


def _named(call: Call, field: str, kind: Kind, hint: Any, current: Any, path: str) -> Any:
    """The part that a name means in the place of a field; the type that is there already keeps what is not given."""
    arguments: dict[str, Term] = dict(call.arguments)
    if call.name in MACHINES or _is_file(call.name):
        source = preset(call.name) if call.name in MACHINES else _loaded(call.name)
        lent = next(_lendable(source, field, kind), None)
        if lent is None:
            raise BadInput(f"{path}: '{call.name}' is {_a(kind_of(source))} and has no {field} to lend")
        return _suited(_changed(lent, arguments, f"{path}."), kind, hint, path)
    if call.name in part_names():
        part = part_class(call.name)
        if kind != "part" and kind_of(part) != kind:
            raise BadInput(f"{path}: expected {_a(kind)}, '{call.name}' is {_a(kind_of(part))}")
        built = _changed(current, arguments, f"{path}.") if type(current) is part else _constructed(part, arguments, f"{path}.")
        return _suited(built, kind, hint, path)
    presets = {name: preset(name) for name in MACHINES}
    lenders = (name for name, source in presets.items() if kind_of(source) != "system" or kind in ("system", "part"))
    lenders = (name for name in lenders if next(_lendable(presets[name], field, kind), None) is not None)
    wanted = tuple(option for option in members(hint) if isinstance(option, type) and is_dataclass(option))
    if kind == "part" and wanted:  # parts of every sort: only those that fit here
        fitting = {name for name in part_names() if issubclass(part_class(name), wanted)}
        raise UnknownName(field, call.name, fitting or {*lenders}, path)
    raise UnknownName(kind, call.name, {*lenders, *_parts_of(kind)}, path)


def _lendable(owner: Any, field: str, kind: Kind) -> Iterator[Any]:
    """The machine itself if it is of the kind, else the part of that kind that it or its parts hold in such a field."""
    if kind_of(owner) == kind:
        yield owner
        return
    if not is_dataclass(owner):
        return
    inner = [getattr(owner, f.name) for f in fields(owner) if is_dataclass(getattr(owner, f.name))]
    value = getattr(owner, field, None)
    if is_dataclass(value) and kind_of(value) == kind:
        yield value
    for part in inner:
        yield from _lendable(part, field, kind)


_PLAIN = frozenset({int, float, str, bool, type(None)})


def describe(machine: object) -> dict[str, Any]:
    """Every field of every part, SI numbers, the part's type under `type`; `from_table` reads it back."""
    part: type = type(machine)
    table: dict[str, Any] = {"type": type_name(part)}
    if hasattr(machine, "to_table"):  # a part with a table of its own, such as a graph
        return {**table, **machine.to_table()}
    for name in settable(part):
        table[name] = _plain_value(getattr(machine, name))
    return table


def _plain_value(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return describe(value)
    if isinstance(value, Mapping):
        return {_plain_value(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain_value(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(_plain_value(item) for item in value)
    return value
