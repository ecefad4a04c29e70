"""MC-DLA's memory-node: `board` is its bandwidth, latency and power, with the `dimms` on it; `address_space` a device's physical
memory with page tables and placement; `remote_memory` the driver that allocates and copies.
"""
