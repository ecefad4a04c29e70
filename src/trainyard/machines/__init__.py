"""Machines by name, by text and by file: `machine("npu(array=tensordash,dram=75 GB/s)")`, machine files, overrides by path.

May import the ir, and parts only by the names in `registry.py` when they are asked for. A new part or machine is a row there.
"""

from trainyard.machines.build import from_table, machine, title, with_overrides
from trainyard.machines.describe import describe
from trainyard.machines.files import load_toml, save_toml, to_toml
from trainyard.machines.grammar import split
from trainyard.machines.registry import about_parts, names, part_types, preset
from trainyard.machines.scalesim import read_cfg, write_cfg

__all__ = [
    "about_parts", "describe", "from_table", "load_toml", "machine", "names", "part_types", "preset", "read_cfg", "save_toml",
    "split", "title", "to_toml", "with_overrides", "write_cfg",
]  # fmt: skip
