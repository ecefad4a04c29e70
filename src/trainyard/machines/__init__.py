"""Machines by name, by text and by file: `machine("npu(array=tensordash,dram=75 GB/s)")`, machine files, overrides by path.

`registry` lists parts and machines by name, `presets` has the machines. `grammar` reads a machine's text and `files` a TOML file;
`fields` checks what a user wrote against a part's annotations, and `build` makes the machine. `describe` is the inverse: a machine
as plain values. `scalesim` reads and writes SCALE-Sim's configurations. A new part or machine is a row in `registry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.lazy import exports
from trainyard.machines.build import describe, from_table, machine, title, with_overrides
from trainyard.machines.grammar import split
from trainyard.machines.registry import about, about_parts, names, part_types, preset

if TYPE_CHECKING:
    from trainyard.machines.files import load_toml, save_toml, to_toml
    from trainyard.machines.scalesim import read_cfg, write_cfg

__all__ = [
    "about", "about_parts", "describe", "from_table", "load_toml", "machine", "names", "part_types", "preset", "read_cfg",
    "save_toml", "split", "title", "to_toml", "with_overrides", "write_cfg",
]  # fmt: skip

__getattr__ = exports(
    __name__,
    {
        "load_toml": "files",
        "save_toml": "files",
        "to_toml": "files",
        "read_cfg": "scalesim",
        "write_cfg": "scalesim",
    },
)
