from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import trainyard as ty
from trainyard.cli.export import FORMATS, export
from trainyard.errors import BadInput, TrainyardError, UnknownName
from trainyard.ir import Phase
from trainyard.workloads.formats import read_topology
from trainyard.workloads.formats.chakra import read_trace
from trainyard.workloads.named import load

TOPOLOGY = "Layer,M,N,K,\nfc1,8,16,32,\nfc2,8,4,16,\n"


@pytest.fixture
def net(tmp_path: Path) -> str:
    file = tmp_path / "net.csv"
    file.write_text(TOPOLOGY)
    return str(file)


def run(*arguments: str) -> None:
    app = typer.Typer()
    app.command()(export)
    app.callback()(lambda: None)
    result = CliRunner().invoke(app, ["export", *arguments])
    if result.exception is not None and isinstance(result.exception, TrainyardError):
        raise result.exception
    assert result.exit_code == 0, result.output


def test_every_format(net: str, tmp_path: Path) -> None:
    run(net, "--to", "step", "-o", str(tmp_path / "s.json.gz"), "--batch", "3")
    assert load(str(tmp_path / "s.json.gz")) == load(net, 3)
    first = (tmp_path / "s.json.gz").read_bytes()
    run(net, "--to", "step", "-o", str(tmp_path / "s.json.gz"), "--batch", "3")
    assert (tmp_path / "s.json.gz").read_bytes() == first
    run(net, "--to", "scalesim", "-o", str(tmp_path / "out.csv"))
    assert read_topology(tmp_path / "out.csv").macs == load(net).macs
    run(net, "--to", "timeloop", "-o", str(tmp_path / "problems"), "--layer", "fc2")
    assert len(list((tmp_path / "problems").iterdir())) == 3
    run(net, "--to", "chakra", "--on", "mcdla-b(devices=4)", "-o", str(tmp_path / "et"), "--batch", "8")
    assert len(read_trace(tmp_path / "et.3.et")[1]) > 5
    run(net, "--to", "ramulator", "--on", "npu", "-o", str(tmp_path / "t.gz"), "--phase", "forward", "--set", "fusion=none")
    assert gzip.decompress((tmp_path / "t.gz").read_bytes()).startswith(b"LD 0x")


def test_the_forward_pass_alone(net: str, tmp_path: Path) -> None:
    run(net, "--to", "step", "-o", str(tmp_path / "s.json"), "--inference")
    assert {op.phase for op in load(str(tmp_path / "s.json")).ops} == {Phase.FORWARD}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--to", "chakra", "-o", "x"), "add --on"),
        (("--to", "scalesim", "-o", "x.csv", "--on", "npu"), "needs no machine"),
        (("--to", "step", "-o", "x.txt"), r"written to \.json"),
        (("--to", "chakra", "--on", "npu", "-o", "x", "--layer", "fc1"), "whole step"),
        (("--to", "ramulator", "--on", "a100", "-o", "x"), "traces one accelerator"),
        (("--to", "ramulator", "--on", "mcdla-b", "-o", "x"), "traces one accelerator"),
        (("--to", "ramulator", "--on", "npu", "-o", "x", "--lines", "3"), "the limit is 3"),
        (("--to", "scalesim", "-o", "no/such/x.csv"), "cannot write"),
        (("--to", "timeloop", "-o", "x", "--phase", "loss"), "has no product of phase 'loss'"),
    ],
)
def test_what_is_refused(net: str, arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        run(net, *arguments)
    with pytest.raises(UnknownName, match="did you mean 'chakra'"):
        run(net, "--to", "chakar", "-o", "x")
    with pytest.raises(UnknownName, match=r"unknown layer 'fc9'.*did you mean 'fc"):
        run(net, "--to", "timeloop", "-o", "x", "--layer", "fc9")
    assert set(FORMATS) == {"step", "scalesim", "timeloop", "chakra", "ramulator"}


def test_the_page_reads_a_trace_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    monkeypatch.chdir(tmp_path)
    run("alexnet", *"--on mcdla-b --batch 512 --parallel data --to chakra -o alexnet".split())
    capsys.readouterr()
    exec(next(block for block in page.split("```python\n")[1:] if "read_trace" in block).split("```")[0], {})
    assert int(capsys.readouterr().out) == round(ty.run("alexnet", "mcdla-b", batch=512, parallel="data").time_s * 1e12)
