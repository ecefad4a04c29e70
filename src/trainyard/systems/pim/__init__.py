"""PIM machines: DPUs that exchange through the host (PIM-Opt) or talk to each other (DIRECT).

In reading order: `systems` has both, `machine` what they share, `device_interface` what they ask of a DPU; `rounds` plays groups of
workers on the engine's clock, `software_sums` reduces without AGAUs, `scaling` is parallel efficiency.
"""
