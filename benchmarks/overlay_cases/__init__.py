"""Other people's networks under budgets of device memory, for `overlay_gpu.py --models`.

In reading order:

- networks: eight networks by configuration, with random weights; unet: one of them in plain torch
- others: any other network, by the name of a configuration or by a function in a file
- alternatives: plain training and the usual ways to save memory
- turns: steps of several ways to train, in turns, until it is known which is faster
- fronts: alternatives and overlays of one network
- caches: networks compiled, but not trained, for the compiler's caches on disk
- workers: the processes: many fill the caches, and one network after the other is measured
- cpp_calls: a compiled step with its calls in Python and in C++
- comparison: the overlay beside each alternative, as a table
- page: docs/overlay_models.md and its figure
"""
