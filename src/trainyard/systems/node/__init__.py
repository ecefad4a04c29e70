"""Nodes of several devices: MC-DLA, its baselines, and any other graph of devices, memories and links.

In reading order: `systems` has the parts and their fields; `plan` the plan of one step; `wires` and `sends` what crosses the links;
`backing` and `paging` the memory behind them; `pipeline` and `pipeline_memory` stages of layers; `captured` steps with exchanges of
their own; `rounds`, `chain` and `neighbours` training algorithms with local steps.
"""
