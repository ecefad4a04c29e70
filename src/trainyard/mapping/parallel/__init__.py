"""Parallelism as a transform of a Step: what one of n equal devices does, with its exchanges.

`transform` is the entry; `data`, `model` and `zero` the kinds, `layer_choice` the best mix of the first two; `shards` and
`relayout` say where tensors lie; `averaging` exchanges models; `captured` orders the exchanges of a captured script.
"""
