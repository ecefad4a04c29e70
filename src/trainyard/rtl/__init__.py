"""Hardware descriptions of the simulated mechanisms, equal to the simulator cycle by cycle (extra `rtl`).

Reading order: `catalogue` (what a design is, and all of them by name), `arithmetic` (floating-point adders and multipliers, shared
by all), then the designs by their papers' words: SIGMA's `reduction` (FAN, ART, a chain), `benes`, `controller` and `flex_dpe`;
`tensordash`; DIRECT's `agau` and `dsc`; `systolic`, the common baseline. `equality` drives a design and the simulator's part with
the same inputs, `verilator` does so for long runs, `verilog` writes a design out and `testbench` its vectors, `formal` proves
properties, `synthesis` counts gates, `measurements` lists what is synthesised for the papers' figures. A new design is a module
with a registered `Design`, named in `catalogue.MODULES`. No simulation imports this room.
"""
