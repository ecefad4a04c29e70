"""What tensors that stay on chip between layers save (`reuse="layers"`): a result against the same run without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainyard.ir.protocols import HasDevice, KeepsTensors

if TYPE_CHECKING:
    from trainyard.results.result import Axis, Cost, Result


class Saving(NamedTuple):
    """Time, DRAM bytes and energy that a layer, a phase or a step needs less; and what it needs without anything kept."""

    time_s: float
    dram_bytes: int
    energy_j: float
    time_before_s: float
    dram_bytes_before: int

    @property
    def time_share(self) -> float:
        return self.time_s / self.time_before_s if self.time_before_s else 0.0

    @property
    def dram_share(self) -> float:
        return self.dram_bytes / self.dram_bytes_before if self.dram_bytes_before else 0.0

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


NO_SAVING = Saving(0.0, 0, 0.0, 0.0, 0)


def without_reuse(result: Result) -> Result | None:
    """The same run with tensors that all go through DRAM; None where the machine keeps none between layers anyway."""
    system = isinstance(result.on, HasDevice)
    device: object = result.on.device if isinstance(result.on, HasDevice) else result.on
    if result.rerun is None or not isinstance(device, KeepsTensors) or not device.between_layers:
        return None
    return result.rerun({"device.reuse" if system else "reuse": "step"})


def savings(before: Result, after: Result, axis: Axis) -> dict[str, Saving]:
    """What each layer or phase needs less, in the order of the step."""
    own = after.group(axis)
    return {key[0]: saving(cost, own.get(key)) for key, cost in before.group(axis).items()}


def slices_by_layer(result: Result) -> dict[str, dict[str, str]]:
    """How layers are cut that run slice by slice, by layer and phase."""
    found: dict[str, dict[str, str]] = {}
    for nest in result.mapping:
        if nest.slices:
            found.setdefault(nest.layer, {})[nest.phase] = nest.slices
    return found


def saving(before: Cost, after: Cost | None) -> Saving:
    moved = before.traffic_bytes.get("dram", 0)
    if after is None:
        return Saving(before.time_s, moved, before.energy_j, before.time_s, moved)
    return Saving(
        before.time_s - after.time_s,
        moved - after.traffic_bytes.get("dram", 0),
        before.energy_j - after.energy_j,
        before.time_s,
        moved,
    )


def sum_of(parts: dict[str, Saving]) -> Saving:
    return Saving(*map(sum, zip(NO_SAVING, *parts.values(), strict=True)))
