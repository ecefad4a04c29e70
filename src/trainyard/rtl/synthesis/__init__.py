"""From a component to gates: area, slowest path and energy by switching activity, in one open standard-cell library.

In reading order: `liberty` (the library's file: cells, tables), `hierarchy` (equal modules of a design are one), `yosys` (the
tool, its script, its cache), `macros` (arithmetic units that all designs share), `netlist` (the mapped design as one flat table
of gates), `timing` (the slowest path by the tables of the library), `activity` (toggles of every net, gate by gate), `report`
(all of it of one design). Scaling to the papers' nodes is `hardware.tables.library_scaling`. Nothing here is imported by a
simulation. Another library is a liberty file named in `$TRAINYARD_LIBERTY`.
"""
