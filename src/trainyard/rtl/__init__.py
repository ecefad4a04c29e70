"""Hardware descriptions of the simulated mechanisms, equal to the simulator cycle by cycle (extra `rtl`).

Reading order: `catalogue` (what a design is, and all of them by name), `arithmetic/` (floating-point adders and multipliers, shared
by all designs), then the designs by their papers' words; `equality` drives a design and the simulator's part with the same inputs,
`verilog` writes it out. A new design is a module with a registered `Design`, named in `catalogue.MODULES`. No simulation imports
this room.
"""
