"""Parallelism as a transform of a Step: the step of one of n equal devices, with its exchanges as ops.

In reading order: `transform` is the entry (`data`, `model`, `mixed`); `data` adds the all-reduces of gradients; `shards` is what a
device has of a tensor and does of an op, `relayout` the exchanges between layouts, `model` the rules of model parallelism;
`layer_choice` the cheapest mode of each layer; `zero` shards optimizer state, gradients and parameters (ZeRO); `experts` spreads
the experts of a mixture, `expert_loops` finds them in a loop; `averaging` exchanges models instead of gradients; `captured` orders
the exchanges of a captured script.
"""
