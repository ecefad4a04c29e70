"""Tables with a source on every line: `energy`, `area`, `cells` of simple logic, how both shrink (`technology`), and how
figures in the cells of a 0.18 um library are scaled to other nodes (`library_scaling`)."""
