"""DIRECT's units: the AGAU's tree of adders with its rounds, and the DSC's token arbiter."""

from __future__ import annotations

from trainyard.rtl.agau.accumulation import AgauDesign
from trainyard.rtl.catalogue import design_of
from trainyard.rtl.measurements.case import case_of

BUFFER_BYTES = 64
"""Of partial sums, in flip-flops: two beats; a real buffer is an SRAM and is added from its table."""

# fmt: off
CASES = (
    case_of(AgauDesign(buffer_bytes=BUFFER_BYTES), "agau/8", 200),
    case_of(AgauDesign(inputs=16, buffer_bytes=BUFFER_BYTES), "agau/16", 200),
    case_of(design_of("dsc-arbiter", {"clusters": 32}), "dsc/32", 1000),
    case_of(design_of("dsc-arbiter", {"clusters": 256}), "dsc/256", 300),
)
# fmt: on
