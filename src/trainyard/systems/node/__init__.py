"""Nodes of several devices: MC-DLA, its baselines, and any other graph of devices, memories and links.

In reading order: `systems` has the designs and their fields; `plan` builds the plan of one step; `wires` adds exchanges and copies
on the links; `backing` is the memory that tensors are paged into, `paging` adds the copies and books memory; `captured` runs steps
with exchanges of their own; `rounds` plans training algorithms with local steps, `chain` concatenates plans, `neighbours` times
exchanges inside clusters; `pipeline` plans stages of layers, with `sends` between them and `pipeline_memory`.
"""
