"""Machines by name, by text and by file: `machine("npu(array=tensordash,dram=75 GB/s)")`, machine files, overrides by path.

`registry` lists parts and machines by name, `presets` has the machines. `grammar` reads a machine's text and `files` a TOML file;
`fields` checks what a user wrote against a part's annotations, and `build` makes the machine. `describe` is the inverse: a machine
as plain values. `scalesim` reads and writes SCALE-Sim's configurations. A new part or machine is a row in `registry`.
"""

from trainyard.machines.build import describe, from_table, machine, title, with_overrides
from trainyard.machines.files import load_toml, save_toml, to_toml
from trainyard.machines.grammar import split
from trainyard.machines.registry import about_parts, names, part_types, preset
from trainyard.machines.scalesim import read_cfg, write_cfg

__all__ = [
    "about_parts", "describe", "from_table", "load_toml", "machine", "names", "part_types", "preset", "read_cfg", "save_toml",
    "split", "title", "to_toml", "with_overrides", "write_cfg",
]  # fmt: skip
