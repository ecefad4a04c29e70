"""Joules of the events that an accelerator counts, by component: rows of `hardware.tables.energy` at its node, and the rows that an
array brings with it."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.caches import BoundedCache, ByIdentity, per_part
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


class RateTable(dict[str, list[tuple[str, float]]]):
    """Components and joules by event. Multiply-accumulates in a format are looked up when they are first asked for: a step has few
    of the formats."""

    def __init__(self, nm: float, charged: bool, rows: Mapping[str, list[tuple[str, float]]], layout: Hashable = None) -> None:
        """`charged`: whether the table's multiply-accumulates are paid for, at the node `nm`. Tables of one `layout` have the same
        events and components; None is that of this table alone."""
        super().__init__(rows)
        self._nm, self._charged = nm, charged
        self.layout = ByIdentity(self) if layout is None else layout

    def __missing__(self, event: str) -> list[tuple[str, float]]:
        if event not in FORMATS:
            return []
        rows = self[event] = [("mac", energy.mac_joules(FORMATS[event], self._nm) if self._charged else 0.0)]
        return rows


class EnergyRates:
    """What each event costs in which components, in joules; an event that is not in the table costs nothing."""

    __slots__ = ("_terms", "by_event", "components")

    def __init__(self, by_event: RateTable) -> None:
        self.by_event = by_event
        self.components = tuple({component: None for rows in by_event.values() for component, _ in rows})
        self._terms: dict[tuple[str, ...], Terms] = {}  # of products and of streams: as few as there are kinds of demands

    def terms(self, events: tuple[str, ...]) -> Terms:
        """The rates of these events, in their order."""
        known = self._terms.get(events)
        if known is None:
            joules = np.array([joules for event in events for _, joules in self.by_event[event]], np.float64)
            places = _PLACES.get((events, self.by_event.layout), lambda: self._places(events))
            known = self._terms[events] = Terms(*places, joules)
        return known

    def _places(self, events: tuple[str, ...]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Numbers of the event and of the component of each term: the same at every node."""
        rows = [(number, component) for number, event in enumerate(events) for component, _ in self.by_event[event]]
        components = [self.components.index(component) for _, component in rows]
        return np.array([number for number, _ in rows], np.int64), np.array(components, np.int64)

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
            for component, joules in self.by_event[event]:
                joules_by_component[component] += (count - named if event == "mac" else count) * joules
        self.require(events, array)
        return joules_by_component


_PLACES = BoundedCache(entries=64)
"""Of terms, by their events and the layout of the table."""


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
    charged = not any(row.number for row in own)  # else multiply-accumulates are in the array's own rows already
    # fmt: off
    table = RateTable(nm, charged, {
        "mac":              [("mac", energy.mac_joules(multiplier, nm) if charged else 0.0)],
        "scratchpad_read":  [("scratchpad", ram_joules_per_byte("read", bank_bytes, nm))],
        "scratchpad_write": [("scratchpad", ram_joules_per_byte("write", bank_bytes, nm))],
        "dram_read":        [("dram", dram)],
        "dram_write":       [("dram", dram)],
        "vector_op":        [("vector", energy.add_joules("fp32", nm))],
    }, layout=(own, local_bytes is None, tuple(name for name, _, _ in levels)))
    # fmt: on
    for row in own:
        table[row.event] = [*table[row.event], (row.component, row.at(nm, number))]
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
    if not own and local_bytes is None and not per_cycle:  # the same, without a table
        read, write = (ram_joules_per_byte(access, bank_bytes, PRICES_NM) for access in ("read", "write"))
        return Prices(dram=energy.dram_joules_per_byte(PRICES_DRAM), read=read, write=write)
    rates = energy_rates(own, local_bytes, bank_bytes, PRICES_NM, PRICES_DRAM, number, number).by_event

    def joules(event: str) -> float:
        return sum(each for _, each in rates[event])

    return Prices(
        dram=joules("dram_read"),
        read=joules("scratchpad_read"),
        write=joules("scratchpad_write"),
        local=joules("local_read") + joules("local_write"),
        cycle=sum(count * joules(event) for event, count in per_cycle),
    )


@per_part
def sampled_events(array: Any) -> dict[str, tuple[float, float]]:
    """What an array counts in a full tile and in one of a single element, by event."""
    events = array.tile_events(Tiles(*(np.array([float(side), 1.0]) for side in (*array.granule(), 1))))
    counts = {name: np.ravel(count).tolist() for name, count in events.items()}
    return {name: (count[0], count[-1]) for name, count in counts.items()}


@per_part
def events_per_cycle(array: Any) -> tuple[tuple[str, float], ...]:
    """Events that an array counts equally often in every busy cycle, in a full tile as in one of a single element."""
    if not (isinstance(array, Array) and isinstance(array, HasTileEvents) and isinstance(array, HasTileCycles)):
        return ()
    full, single = array.tile_cycles(*array.granule()), array.tile_cycles(1, 1, 1)
    counted = [(name, most / full, least / single) for name, (most, least) in sampled_events(array).items()]
    return tuple((name, most) for name, most, least in counted if most > 0 and math.isclose(most, least))
