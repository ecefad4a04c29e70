"""What the tile search of an accelerator makes small (`objective`), how exactly (`tolerance`) and with how much work (`effort`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainyard.errors import BadInput
from trainyard.hardware.tables.energy import Prices
from trainyard.ir import DeviceCost
from trainyard.mapping.tiling import Goal, Objective

if TYPE_CHECKING:
    from trainyard.devices.accelerator.device import Accelerator
    from trainyard.ir import Masks, Step


def goal_of(device: Accelerator, prices: Prices) -> Goal:
    """What the compiled search makes least; for energy, it finds candidates between the least time and the least traffic."""
    objective: Objective = "time" if device.objective in ("energy", "edp") else device.objective
    return Goal(objective, float(device.tolerance), device.effort, prices=prices)


def value_of(device: Accelerator) -> Callable[[DeviceCost], float] | None:
    """Joules of a cost, or joules times cycles; None where cycles and bytes alone decide.

    The energy of a tile is that of all its events, at the ports of the scratchpad too, and these depend on its shape.
    """
    if device.objective == "energy":
        return lambda cost: sum(device.energy(cost.events).values())
    if device.objective == "edp":
        return lambda cost: sum(device.energy(cost.events).values()) * cost.cycles
    return None


def require_goal(device: Accelerator) -> None:
    """Refuses an objective where something else than the tile search chooses, by time."""
    if not 0 <= device.tolerance < 1:
        raise BadInput(f"Accelerator: tolerance is a share of the least, from 0 to less than 1, got {device.tolerance!r}")
    if device.objective == "time":
        return
    chooses = next(
        (
            f"{name}={value!r}"
            for name, value, plain in (
                ("across", device.across, "none"),
                ("together", device.together, "none"),
            )
            if value != plain
        ),
        None,
    )
    if chooses:
        raise BadInput(
            f"Accelerator: objective={device.objective!r} with {chooses}, which chooses by time, is not modelled: leave one out"
        )


def search_notes(device: Accelerator, step: Step, masks: Masks | None) -> tuple[str, ...]:
    """A sentence where the search ended before it proved its choice."""
    nests = [nest for nest in device.loop_nests(step, masks) if nest.loops]
    bound = f"effort={device.effort}"
    ended = sum(not nest.proven and bound in nest.why_unproven for nest in nests)
    notes = [f"the search of {ended} of {len(nests)} mappings was ended by {bound} before they were proven to be the best"]
    residency = device._policy(step)[0].residency
    if residency is not None and residency.ended:
        between = f"{bound} ended the search for what stays on chip between layers before all changes were tried"
        return (*notes[: bool(ended)], between)
    return tuple(notes[: bool(ended)])
