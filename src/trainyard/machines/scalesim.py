"""SCALE-Sim configurations as machines: a systolic array, three SRAMs as one scratchpad, a bandwidth in words per cycle.

SCALE-Sim knows no clock and no bytes: a word is `word_bytes`, a cycle 1 / `clock`. Under `InterfaceBandwidth: CALC` bandwidth is
its output, not its input: the machine then gets what the array's edges can take, so that DRAM never stalls it.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from io import StringIO
from typing import Any

from trainyard.errors import BadInput, UnknownName, quoted
from trainyard.files import write_text
from trainyard.machines.build import describe, from_table
from trainyard.reading import read_text, reader
from trainyard.units import parse

KILOBYTE = 1024
DIGITS = 12  # of a count; more is a slip
SRAMS = ("ifmapsramszkb", "filtersramszkb", "ofmapsramszkb")
EXACT = "trainyard"
"""A section of our own, which SCALE-Sim passes over: the numbers that its integers cannot hold, and the node."""
EXACT_FIELDS = ("scratchpad_bytes", "dram_bytes_per_s", "technology_nm")


@reader("configuration")
def read_cfg(path: str | os.PathLike[str], *, clock: str | float = "1 GHz", word_bytes: int = 1) -> Any:
    """The accelerator of a configuration file."""
    config = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"))
    try:
        config.read_string(read_text(path, "configuration"), source=str(path))
    except configparser.Error as error:
        raise BadInput(f"not a configuration: {' '.join(str(error).split())}") from None
    preset = _section(config, "architecture_presets", path)
    rows, columns = (_integer(preset, key, path) for key in ("arrayheight", "arraywidth"))
    exact = dict(config[EXACT]) if config.has_section(EXACT) else {}
    clock_hz = parse(exact.get("clock_hz", clock), "Hz", f"{path}: clock")
    table: dict[str, Any] = {
        "type": "accelerator",
        "array": {"type": "systolic", "rows": rows, "columns": columns, "dataflow": _dataflow(preset, path)},
        "clock_hz": clock_hz,
        "scratchpad_bytes": sum(_integer(preset, key, path) for key in SRAMS) * KILOBYTE,
        "dram_bytes_per_s": _words_per_cycle(config, preset, rows, columns, path) * word_bytes * clock_hz,
    }
    table.update({key: exact[key] for key in EXACT_FIELDS if key in exact})
    return from_table(table, f"{path}: ")


def write_cfg(machine: Any, path: str | os.PathLike[str], *, word_bytes: int = 1) -> None:
    """Writes a machine with a systolic array; the scratchpad is cut 2 : 2 : 1 as SCALE-Sim's own defaults are."""
    table = describe(machine)
    array = table.get("array")
    if not isinstance(array, Mapping) or array.get("type") != "systolic":
        raise BadInput(f"{path}: SCALE-Sim knows systolic arrays only, this machine has {_kind(array)}")
    kilobytes = int(table["scratchpad_bytes"]) // KILOBYTE
    if kilobytes < 3:
        raise BadInput(f"{path}: a scratchpad of {table['scratchpad_bytes']} B cannot be cut into three SRAMs of whole kB")
    operand = max(1, kilobytes * 2 // 5)
    words = max(1, round(table["dram_bytes_per_s"] / (table["clock_hz"] * word_bytes)))
    config = configparser.ConfigParser(interpolation=None)
    config.optionxform = str  # type: ignore[assignment, method-assign]  # keeps the keys' capitals, as SCALE-Sim writes them
    config["general"] = {"run_name": "trainyard"}
    preset = {
        "ArrayHeight": array["rows"], "ArrayWidth": array["columns"],
        "IfmapSramSzkB": operand, "FilterSramSzkB": operand, "OfmapSramSzkB": kilobytes - 2 * operand,
        "IfmapOffset": 0, "FilterOffset": 10_000_000, "OfmapOffset": 20_000_000,
        "Dataflow": array["dataflow"], "Bandwidth": words, "MemoryBanks": 1,
    }  # fmt: skip
    config["architecture_presets"] = {key: str(value) for key, value in preset.items()}
    config["sparsity"] = {"SparsitySupport": "false"}
    config["run_presets"] = {"InterfaceBandwidth": "USER"}
    config[EXACT] = {key: repr(table[key]) for key in ("clock_hz", *EXACT_FIELDS) if key in table}
    text = StringIO()
    config.write(text)
    write_text(path, text.getvalue())


def _section(config: configparser.ConfigParser, name: str, path: object) -> Mapping[str, str]:
    for section in config.sections():
        if section.strip().lower() == name:
            return dict(config[section])
    raise BadInput(f"{path}: no section [{name}] (found: {', '.join(config.sections()) or 'none'})")


def _integer(preset: Mapping[str, str], key: str, path: object) -> int:
    if key not in preset:
        raise BadInput(f"{path}, [architecture_presets]: {key} is missing (found: {', '.join(preset) or 'nothing'})")
    return _positive(preset[key].strip(), f"{path}, [architecture_presets] {key}: expected a positive whole number")


def _positive(text: str, expected: str) -> int:
    if not re.fullmatch(rf"[0-9]{{1,{DIGITS}}}", text) or int(text) < 1:
        raise BadInput(f"{expected} of at most {DIGITS} digits, got {quoted(text)}")
    return int(text)


def _dataflow(preset: Mapping[str, str], path: object) -> str:
    flow = preset.get("dataflow", "ws").strip().lower()
    if flow not in ("ws", "os", "is"):
        raise UnknownName("dataflow", flow, ("ws", "os", "is"), f"{path}, [architecture_presets]")
    return flow


def _words_per_cycle(config: configparser.ConfigParser, preset: Mapping[str, str], rows: int, columns: int, path: object) -> int:
    """The three interfaces of SCALE-Sim as one: its first figure is the bandwidth of each."""
    mode = config.get("run_presets", "InterfaceBandwidth", fallback="USER" if "bandwidth" in preset else "CALC").strip().upper()
    if mode == "CALC":
        return rows + 2 * columns
    if mode != "USER":
        raise UnknownName("InterfaceBandwidth", mode, ("CALC", "USER"), f"{path}, [run_presets]")
    first = preset.get("bandwidth", "").split(",")[0].strip()
    return _positive(first, f"{path}, [architecture_presets] bandwidth: expected words per cycle, a whole number")


def _kind(array: Any) -> str:
    return f"'{array.get('type')}'" if isinstance(array, Mapping) else "no array"
