from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainyard.arrays import Systolic
from trainyard.errors import BadInput, UnknownName
from trainyard.machines import machine, preset, read_cfg, write_cfg

CFG = """[general]
run_name = "google_tpu"   # as found in the wild

[architecture_presets]
ArrayHeight:    256
ArrayWidth:     128
IfmapSramSzkB:  6144
FilterSramSzkB: 6144
OfmapSramSzkB:  2048
IfmapOffset:    0
FilterOffset:   10000000
OfmapOffset:    20000000
Dataflow : os
Bandwidth : 10,20
MemoryBanks:   1

[run_presets]
InterfaceBandwidth: USER
"""


def read(tmp_path: Path, text: str, **options: object) -> object:
    file = tmp_path / "tpu.cfg"
    file.write_text(text)
    return read_cfg(file, **options)  # type: ignore[arg-type]


def test_a_configuration_as_found_in_the_wild(tmp_path: Path) -> None:
    made = read(tmp_path, CFG)
    assert made.array == Systolic(rows=256, columns=128, dataflow="os")  # type: ignore[attr-defined]
    assert made.scratchpad_bytes == 14 * 2**20  # type: ignore[attr-defined]
    assert made.dram_bytes_per_s == 10e9  # type: ignore[attr-defined]  # 10 words of a byte at 1 GHz
    assert machine(str(tmp_path / "tpu.cfg")) == made
    faster = read(tmp_path, CFG, clock="700 MHz", word_bytes=2)
    assert (faster.clock_hz, faster.dram_bytes_per_s) == (700e6, 14e9)  # type: ignore[attr-defined]


def test_calculated_bandwidth_is_what_the_edges_take(tmp_path: Path) -> None:
    made = read(tmp_path, CFG.replace("USER", "CALC"))
    assert made.dram_bytes_per_s == (256 + 2 * 128) * 1e9  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["npu", "npu-small", "tpu"])
def test_written_machines_come_back(name: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.cfg"
    write_cfg(preset(name), file)
    assert read_cfg(file) == preset(name)


def test_scalesim_finds_its_own_keys(tmp_path: Path) -> None:
    """What SCALE-Sim 3 asks its parser for, in the types that it takes."""
    import configparser

    write_cfg(preset("npu"), tmp_path / "npu.cfg")
    config = configparser.ConfigParser()
    config.read(tmp_path / "npu.cfg")
    preset_section = config["architecture_presets"]
    srams = [int(preset_section[f"{name}sramszkB"]) for name in ("ifmap", "filter", "ofmap")]
    assert sum(srams) == 8 * 1024
    assert min(srams) > 0
    assert (int(preset_section["ArrayHeight"]), int(preset_section["ArrayWidth"])) == (128, 128)
    assert preset_section["Dataflow"] == "ws"
    assert int(preset_section["Bandwidth"]) == round(150e9 / 1050e6)
    assert config.get("run_presets", "InterfaceBandwidth") == "USER"
    assert config.get("sparsity", "SparsitySupport") == "false"
    assert config.get("general", "run_name")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("ArrayHeight:    256\n", "", "arrayheight"),
        ("256", "-1", "arrayheight: expected a positive whole number of at most 12 digits, got '-1'"),
        ("Dataflow : os", "Dataflow : rs", "unknown dataflow 'rs'"),
        ("USER", "MAYBE", "unknown InterfaceBandwidth 'MAYBE'"),
        ("Bandwidth : 10,20", "Bandwidth : fast", "expected words per cycle"),
        ("[architecture_presets]", "[architecture]", "no section [architecture_presets]"),
        ("[run_presets]", "[general]", "general"),
        ("[general]", "general", "tpu.cfg"),
    ],
)
def test_faults_name_the_file(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises((BadInput, UnknownName)) as caught:
        read(tmp_path, CFG.replace(old, new, 1))
    assert says in str(caught.value)
    assert "tpu.cfg" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="systolic arrays only, this machine has 'spatial'"):
        write_cfg(preset("spatial"), tmp_path / "m.cfg")
    with pytest.raises(BadInput, match="no array"):
        write_cfg(preset("h200"), tmp_path / "m.cfg")
    with pytest.raises(BadInput, match="three SRAMs"):
        write_cfg(replace(preset("npu"), scratchpad_bytes=2048), tmp_path / "m.cfg")
    assert list(tmp_path.iterdir()) == []
