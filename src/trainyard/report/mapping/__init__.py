"""The mapping that a device chose: `loop_nests` is text and a table of the page, `timeloop` writes files for `timeloop-model`.

What they show is `results.loop_nests.LoopNest`; a device makes it (`Accelerator.loop_nests`). A format of another tool is one more
module here.
"""
