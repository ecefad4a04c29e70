"""A DPU: a small multithreaded processor next to a DRAM bank, or one with a MAC array.

In reading order: `device` is the part, `costs` what a Work takes, `functions` ops that are no products, `memory` what a step takes
of MRAM, `presets` UPMEM's DPU and one with a MAC array.
"""
