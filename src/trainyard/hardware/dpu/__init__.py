"""Mechanisms of UPMEM's DPUs: `instructions` counts the instructions of software arithmetic, `pipeline` simulates tasklets
instruction by instruction, `host_link` has exchanges between DPUs through the host.
"""
