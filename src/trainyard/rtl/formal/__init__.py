"""Properties of the designs, checked for all inputs (of circuits with registers: up to a number of cycles) by a SAT solver.

In reading order: `solver` runs Yosys on a property; `pairs` has TensorDash's (each pair issued once, none lost), `tokens` the DSC's
(no two owners, no starvation), `adders` FAN's (no adder claimed twice); `properties` lists them with the sizes that are checked.
"""
