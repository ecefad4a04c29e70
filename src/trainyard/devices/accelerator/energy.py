"""Joules of the events that an accelerator counts, by component: rows of `hardware.tables.energy` at its node, and the rows that an
array brings with it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.caches import per_part
from trainyard.errors import BadInput
from trainyard.hardware.tables import energy
from trainyard.hardware.tables.energy import Prices, ram_joules_per_byte
from trainyard.ir import Array
from trainyard.ir.folds import Tiles
from trainyard.ir.protocols import HasTileCycles, HasTileEvents
from trainyard.mapping.levels.level import LEVEL_EVENT

FORMATS = {f"mac_{row.name}": row.name for row in energy.MULTIPLY}
PORTS = ("scratchpad_read", "scratchpad_write", "local_read", "local_write")
"""What an array counts in elements by operand: `scratchpad_read_a`, `local_write_out`."""
OPERANDS = ("a", "b", "out")
LOCAL = ("local_read", "local_write")
PRICES_NM, PRICES_DRAM = 16, "hbm2"
"""Where the prices of the tile search are read off the tables. They are the same for all nodes and types of DRAM: a choice of
technology changes energies, but no tiles and no time."""


class Terms(NamedTuple):
    """Rates as columns: the number of an event, that of a component, and the joules of one such event in that component."""

    event: npt.NDArray[np.int64]
    component: npt.NDArray[np.int64]
    joules: npt.NDArray[np.float64]


class EnergyRates:
    """What each event costs in which components, in joules."""

    __slots__ = ("_joules", "_rows", "_terms", "by_event", "components")

    def __init__(self, by_event: Mapping[str, list[tuple[str, float]]]) -> None:
        self.by_event = by_event
        self._rows = tuple((event, component) for event, rows in by_event.items() for component, _ in rows)
        self._joules = np.array([joules for rows in by_event.values() for _, joules in rows], np.float64)
        self.components = tuple(dict.fromkeys(component for _, component in self._rows))
        self._terms: dict[tuple[str, ...], Terms] = {}  # of products and of streams: as few as there are kinds of demands

    def terms(self, events: tuple[str, ...]) -> Terms:
        """The rates of these events, in their order."""
        known = self._terms.get(events)
        if known is None:
            event, component, row = _places(events, self._rows, self.components)
            known = self._terms[events] = Terms(event, component, self._joules[row])
        return known

    def require(self, events: Collection[str], array: object) -> None:
        """Refuses local accesses of an array that does not say how large its local scratchpads are."""
        for event in LOCAL:
            if event in events and event not in self.by_event:
                raise BadInput(f"{type(array).__name__} counts {event}: give it local_bytes, the size of a local scratchpad")

    def joules(self, events: Mapping[str, float], array: object) -> dict[str, Any]:
        """Joules by component, event by event."""
        named = sum(count for event, count in events.items() if event in FORMATS)
        joules_by_component: dict[str, Any] = dict.fromkeys(self.components, 0.0)
        for event, count in events.items():
            for component, joules in self.by_event.get(event, ()):
                joules_by_component[component] += (count - named if event == "mac" else count) * joules
        self.require(events, array)
        return joules_by_component


@lru_cache(maxsize=64)
def _places(
    events: tuple[str, ...], rows: tuple[tuple[str, str], ...], components: tuple[str, ...]
) -> tuple[npt.NDArray[np.int64], ...]:
    """Numbers of the event, the component and the row of each term: the same at every node."""
    terms = [
        (number, components.index(component), row)
        for number, name in enumerate(events)
        for row, (event, component) in enumerate(rows)
        if event == name
    ]
    return tuple(np.array(terms, np.int64).reshape(-1, 3).T.copy())


@lru_cache(maxsize=256)
def event_of(name: str) -> tuple[str, str]:
    """The event that an array's own one counts as, and the operand whose elements it counts in.

    >>> event_of("scratchpad_read_a"), event_of("array_pass")
    (('scratchpad_read', 'a'), ('array_pass', ''))
    """
    target, _, operand = name.rpartition("_")
    return (target, operand) if target in PORTS and operand in OPERANDS else (name, "")


def format_of(events: Mapping[str, Any]) -> str | None:
    """The format of the multiplications among these events; None where there are none, or several."""
    formats = [FORMATS[event] for event in events if event in FORMATS]
    return formats[0] if len(formats) == 1 else None


@lru_cache(maxsize=256)
def energy_rates(
    own: tuple[energy.Component, ...],
    local_bytes: float | None,
    bank_bytes: float,
    nm: float,
    dram_kind: str,
    multiplier: str,
    number: str,
    levels: tuple[tuple[str, float, float], ...] = (),
) -> EnergyRates:
    """Of a device with multipliers of the format `multiplier`, such banks and such DRAM; arithmetic of the array's `own` rows is in
    the format `number`. `levels` are memories inside the scratchpad with the joules of a byte read and written."""
    dram = energy.dram_joules_per_byte(dram_kind)
    twice = any(row.number for row in own)  # multiply-accumulates are in the array's own rows already
    # fmt: off
    table: dict[str, list[tuple[str, float]]] = {
        "mac":              [("mac", 0.0 if twice else energy.mac_joules(multiplier, nm))],
        **{event: [("mac", 0.0 if twice else energy.mac_joules(name, nm))] for event, name in FORMATS.items()},
        "scratchpad_read":  [("scratchpad", ram_joules_per_byte("read", bank_bytes, nm))],
        "scratchpad_write": [("scratchpad", ram_joules_per_byte("write", bank_bytes, nm))],
        "dram_read":        [("dram", dram)],
        "dram_write":       [("dram", dram)],
        "vector_op":        [("vector", energy.add_joules("fp32", nm))],
    }
    # fmt: on
    for row in own:
        table.setdefault(row.event, []).append((row.component, row.at(nm, number)))
    if local_bytes is not None:
        table["local_read"] = [("local", ram_joules_per_byte("read", local_bytes, nm))]
        table["local_write"] = [("local", ram_joules_per_byte("write", local_bytes, nm))]
    for name, read, written in levels:
        table[f"{LEVEL_EVENT}{name}_read"] = [(name, read)]
        table[f"{LEVEL_EVENT}{name}_write"] = [(name, written)]
    return EnergyRates(table)


@lru_cache(maxsize=256)
def tile_prices(
    own: tuple[energy.Component, ...],
    local_bytes: float | None,
    bank_bytes: float,
    number: str,
    per_cycle: tuple[tuple[str, float], ...],
) -> Prices:
    """By what the tile search compares tilings of equal time and traffic; `per_cycle` are events of each busy cycle of an array."""
    rates = energy_rates(own, local_bytes, bank_bytes, PRICES_NM, PRICES_DRAM, number, number).by_event

    def joules(event: str) -> float:
        return sum(each for _, each in rates.get(event, ()))

    return Prices(
        dram=joules("dram_read"),
        read=joules("scratchpad_read"),
        write=joules("scratchpad_write"),
        local=joules("local_read") + joules("local_write"),
        cycle=sum(count * joules(event) for event, count in per_cycle),
    )


@per_part
def events_per_cycle(array: Any) -> tuple[tuple[str, float], ...]:
    """Events that an array counts equally often in every busy cycle, in a full tile as in one of a single element."""
    if not (isinstance(array, Array) and isinstance(array, HasTileEvents) and isinstance(array, HasTileCycles)):
        return ()
    counted = []
    for size in (array.granule(), (1, 1, 1)):
        columns = (np.array([float(side)]) for side in (*size, 1))
        cycles = array.tile_cycles(*size)
        events = array.tile_events(Tiles(*columns))
        counted.append({name: float(np.ravel(count)[0]) / cycles for name, count in events.items()})
    return tuple((name, count) for name, count in counted[0].items() if count > 0 and math.isclose(count, counted[1][name]))
