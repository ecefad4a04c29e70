"""Other people's networks under budgets of device memory, for `overlay_gpu.py --models`.

In reading order:

- networks: eight networks by configuration, with random weights; unet: one of them in plain torch
- others: any other network, by the name of a configuration or by a function in a file
- alternatives: plain training and the usual ways to save memory
- fronts: alternatives and overlays of one network, measured in turns
- workers: a process for each network: all compile side by side, then they are measured one after the other
- page: docs/overlay_models.md and its figure
"""
