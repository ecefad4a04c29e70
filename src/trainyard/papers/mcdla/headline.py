"""MC-DLA's headline, the speedup over the device-centric node, and the three assumptions that it hinges on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from trainyard.machines.presets.mcdla import DC_DLA, MCDLA_B
from trainyard.papers.headlines import Headline, Hinge
from trainyard.papers.mcdla.measuring import PARALLEL, mean_of_both, speedups


def _speedup(**changes: Any) -> float:
    """Of (B) over DC-DLA, fields changed in both nodes that have them."""
    fast, slow = (
        replace(node, **{name: value for name, value in changes.items() if hasattr(node, name)}) for node in (MCDLA_B, DC_DLA)
    )
    return mean_of_both({parallel: speedups(fast, slow, parallel) for parallel in PARALLEL})


# fmt: off
HEADLINE = Headline(
    system="MC-DLA",
    titles={
        "mcdla.speedup":   "speedup over the device-centric node",
        "mcdla.of_oracle": "share of the oracle's performance, %",
    },
    figure="Fig. 13",
    shows="performance of six designs over DC-DLA",
    hinges=(
        Hinge(
            assumed="PCIe gen3 carries its nominal 16 GB/s each way, a value that was picked after results had been seen.",
            otherwise="With the 12 GB/s that copies get on real machines",
            result=partial(_speedup, pcie_bytes_per_s=12e9),
        ),
        Hinge(
            assumed="Two devices share the uplink of a PCIe switch, as in a DGX-1.",
            otherwise="With an uplink for every device",
            result=partial(_speedup, devices_per_switch=1),
        ),
        Hinge(
            assumed="A model-parallel device stores its own part of a feature map.",
            otherwise="If every device stores the whole map",
            result=partial(_speedup, stored="whole"),
        ),
    ),
)
# fmt: on
