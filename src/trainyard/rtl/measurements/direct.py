"""DIRECT's units: the AGAU's tree of adders with its rounds, and the DSC's token arbiter."""

from __future__ import annotations

from functools import partial

import numpy as np

from trainyard.rtl.agau.accumulation import AgauDesign
from trainyard.rtl.catalogue import Inputs, design_of
from trainyard.rtl.measurements.case import case_of

BUFFER_BYTES = 64
"""Of partial sums, in flip-flops: two beats; a real buffer is an SRAM and is added from its table."""

BEATS = 120


def full_tree(design: AgauDesign) -> list[Inputs]:
    """As many contributions as the tree has inputs, a beat in every cycle."""
    draw = np.random.default_rng(6)
    numbers = draw.standard_normal((design.inputs, BEATS * design.agau.lanes), dtype=np.float32)
    return design.reduction(numbers.view(np.uint32))


SMALL, LARGE = AgauDesign(buffer_bytes=BUFFER_BYTES), AgauDesign(inputs=16, buffer_bytes=BUFFER_BYTES)
# fmt: off
CASES = (
    case_of(SMALL, "agau/8", 200, busy=partial(full_tree, SMALL)),
    case_of(LARGE, "agau/16", 200, busy=partial(full_tree, LARGE)),
    case_of(design_of("dsc-arbiter", {"clusters": 32}), "dsc/32", 1000),
    case_of(design_of("dsc-arbiter", {"clusters": 256}), "dsc/256", 300),
)
# fmt: on
