"""PIM machines: DPUs that exchange through the host (PIM-Opt) or talk to each other (DIRECT).

In reading order: `systems` has the two machines, `machine` what they share, `device_interface` what they need from a DPU; `rounds`
simulates groups of workers on the engine's clock and writes the plan, `software_sums` reduces without AGAUs, `scaling` computes
parallel efficiency.
"""
