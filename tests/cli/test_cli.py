from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from typer.testing import CliRunner

from trainyard import cli
from trainyard.report.terminal import progress

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def topology(tmp_path: Path) -> str:
    """Three layers: a workload that costs no time to read."""
    file = tmp_path / "small.csv"
    file.write_text("Layer,M,N,K\nfirst,64,128,256\nsecond,64,64,128\nlast,64,10,64\n")
    return str(file)


def in_one_line(err: str) -> str:
    assert err.startswith("trainyard: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_json_and_nothing_but_json(trainyard: Run, topology: str) -> None:
    code, out, _ = trainyard("run", topology, "--on", "npu", "--json", "-")
    assert code == 0
    result = json.loads(out)
    for key in ("time_s", "samples_per_s", "cycles", "energy_j", "traffic_bytes", "by_phase", "by_layer", "assumptions", "version"):
        assert key in result
    assert result["time_s"] > 0
    assert {"first", "second", "last"} <= set(result["by_layer"])
    assert {"forward", "grad_input", "grad_weight", "update"} <= set(result["by_phase"])


def test_the_table(trainyard: Run, topology: str) -> None:
    code, out, _ = trainyard("run", topology, "--on", "npu", "--no-range", "--by", "phase")
    assert code == 0
    assert "grad_weight" in out
    with pytest.raises(json.JSONDecodeError):
        json.loads(out)


def test_options_reach_the_machine(trainyard: Run, topology: str) -> None:
    def result(*words: str) -> Any:
        code, out, err = trainyard("run", topology, "--no-range", "--json", "-", *words)
        assert code == 0, err
        return json.loads(out)

    plain = result("--on", "npu")
    assert result("--on", "npu", "--batch", "8")["macs"] == 8 * plain["macs"]
    changed = result("--on", "npu", "--set", "array.rows=64", "--set", "dram=75 GB/s")
    assert changed["config"]["array"]["rows"] == 64
    assert changed["config"]["dram_bytes_per_s"] == 75e9
    assert changed["machine"] == "npu with array.rows=64, dram=75 GB/s"
    assert changed["config_hash"] != plain["config_hash"]
    assert result("--on", "npu(array=systolic(rows=64),dram=75 GB/s)")["time_s"] == changed["time_s"]


def test_files_are_written(trainyard: Run, topology: str, tmp_path: Path) -> None:
    names = {"--json": "r.json", "--html": "r.html", "--csv": "r.csv", "--perfetto": "r.json.gz", "--parquet": "r.parquet"}
    words = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    code, out, err = trainyard("run", topology, "--on", "npu", "--no-range", *words)
    assert code == 0, err
    assert out
    for name in names.values():
        assert (tmp_path / name).stat().st_size > 0
        assert f"wrote {tmp_path / name}" in err
    assert json.loads((tmp_path / "r.json").read_text())["time_s"] > 0


def test_explain(trainyard: Run, topology: str) -> None:
    one = trainyard("run", topology, "--on", "npu", "--no-range", "--explain", "second")
    other = trainyard("explain", topology, "second", "--on", "npu")
    assert one[0] == other[0] == 0
    assert one[1] == other[1] != ""
    in_one_line(trainyard("explain", topology)[2])


def test_explain_takes_dpus_and_an_algorithm(trainyard: Run) -> None:
    options = ("--on", "direct", "--dpus", "64", "--algorithm", "model-averaging(period=4)")
    explained = trainyard("explain", "linear", *options)
    ran = trainyard("run", "linear", *options, "--no-range", "--explain", "")
    assert explained[0] == ran[0] == 0, explained[2] + ran[2]
    assert explained[1] == ran[1]
    in_one_line(trainyard("explain", "linear", "--on", "npu", "--dpus", "64")[2])


def test_compare(trainyard: Run, topology: str, tmp_path: Path) -> None:
    code, out, err = trainyard("compare", topology, "--on", "npu, npu(dram=75 GB/s,clock=2 GHz) ,npu-small", "--json", "-")
    assert code == 0, err
    results = json.loads(out)
    assert [result["machine"] for result in results] == ["npu", "npu(dram=75 GB/s,clock=2 GHz)", "npu-small"]
    assert len({result["config_hash"] for result in results}) == 3
    code, out, _ = trainyard("compare", topology, "--on", "npu,npu-small", "--html", str(tmp_path / "c.html"))
    assert code == 0
    assert "npu-small" in out
    assert (tmp_path / "c.html").exists()


def test_whatif(trainyard: Run, topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.papers import bench

    code, out, err = trainyard("whatif", topology, "--on", "npu", "--json", "-")
    assert code == 0, err
    found = json.loads(out)
    rows = found["worths"]
    assert {"name", "kind", "value", "alternative", "before", "after", "change"} <= set(rows[0])
    assert {row["kind"] for row in rows} == {"assumption", "parameter"}
    changes = [abs(row["change"]) for row in rows]
    assert changes == sorted(changes, reverse=True)
    assert len(found["pairs"]) == 15  # of the six that matter most
    code, out, _ = trainyard("whatif", topology, "--on", "npu", "--only", "assumptions", "--pairs", "0", "--json", "-")
    assert code == 0
    assert not json.loads(out)["pairs"]
    assert {row["kind"] for row in json.loads(out)["worths"]} == {"assumption"}
    assert "did you mean 'parameters'" in in_one_line(trainyard("whatif", topology, "--on", "npu", "--only", "parametres")[2])
    assert "above 1" in in_one_line(trainyard("whatif", topology, "--on", "npu", "--factor", "0.5")[2])
    page = tmp_path / "w.html"
    code, out, _ = trainyard("whatif", topology, "--on", "npu", "--pairs", "2", "--html", str(page))
    assert code == 0
    assert "interaction" in out
    assert "tornado" in page.read_text()
    assert "add --on" in in_one_line(trainyard("whatif", topology)[2])
    monkeypatch.setattr(bench, "PAPERS", {})
    assert "no machine yet" in in_one_line(trainyard("whatif", "direct")[2])


@pytest.mark.parametrize("kind", cli.names.KINDS)
def test_list(trainyard: Run, kind: str) -> None:
    code, out, _ = trainyard("list", kind, "--json", "-")
    assert code == 0
    names = json.loads(out)
    assert names
    assert all(about for about in names.values())
    code, shown, _ = trainyard("list", kind)
    assert code == 0
    assert all(name in shown for name in names)


def test_list_everything(trainyard: Run) -> None:
    found = json.loads(trainyard("list", "--json", "-")[1])
    assert tuple(found) == cli.names.KINDS
    assert "npu" in found["machines"]
    assert "resnet50" in found["models"]
    assert "did you mean 'machines'" in in_one_line(trainyard("list", "machine")[2])


def test_a_paper_may_weigh_its_assumptions_itself(trainyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.papers import igo
    from trainyard.papers.igo import assumptions
    from trainyard.sensitivity import Change, SensitivityStudy

    tile = Change(name="tile", meaning="how high", value=16, alternative=8, payload=8)
    own = SensitivityStudy(title="igo", metric="per cent saved", changes=[tile], measure=lambda _, made: 12.5 if made else 10.0)
    monkeypatch.setattr(assumptions, "sensitivity_study", lambda kinds: own)
    monkeypatch.setattr(igo, "PAPER", replace(igo.PAPER, case=("linear", "npu")))
    code, out, _ = trainyard("whatif", "igo", "--json", "-")
    assert code == 0
    assert [(row["name"], row["change"]) for row in json.loads(out)["worths"]] == [("tile", 0.25)]
    code, out, _ = trainyard("whatif", "igo")
    assert code == 0
    assert "per cent saved" in out
    assert "+25.0 %" in out
    # an option that only a run of a machine knows takes the paper's case
    code, out, _ = trainyard("whatif", "igo", "--metric", "cycles", "--json", "-")
    assert code == 0
    assert "im2col" in {row["name"] for row in json.loads(out)["worths"]}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the experiments that take long; they have tests of their own."""
    from trainyard.papers import bench, sigma

    monkeypatch.setattr(bench, "PAPERS", {"sigma": bench.PAPERS["sigma"]})
    monkeypatch.setattr(sigma, "PAPER", replace(sigma.PAPER, experiments=("baseline",)))


@pytest.mark.usefixtures("quick")
def test_reproduce(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = trainyard("reproduce", "sigma", "--json", "-")
    assert code == 0
    rows = json.loads(out)
    assert {"id", "paper", "ours", "ratio", "verdict", "note"} <= set(rows[0])
    assert any(row["verdict"] == "met" for row in rows)
    code, out, _ = trainyard("reproduce", "sigma", "--figure", "12", "--html", "l.html", "--markdown", "l.md")
    assert code == 0
    assert "not yet" in out
    assert {path.name for path in tmp_path.iterdir()} == {"l.html", "l.md"}
    assert "did you mean 'sigma'" in in_one_line(trainyard("reproduce", "sigmo")[2])


@pytest.mark.usefixtures("quick")
def test_the_whole_ledger_writes_only_where_it_is_told(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "reproduction.md"
    page.write_text("somebody else's")
    assert trainyard("reproduce", "--json", "-")[0] == 0
    assert page.read_text() == "somebody else's"
    assert list(tmp_path.rglob("*")) == [tmp_path / "docs", page]
    assert trainyard("reproduce", "--json", "-", "--markdown", "docs/reproduction.md", "--html", "docs/reproduction.html")[0] == 0
    assert page.read_text().startswith("# Reproduction")
    assert {path.name for path in (tmp_path / "docs").iterdir()} == {"reproduction.md", "reproduction.html"}


def test_a_failing_experiment_is_exit_code_1(trainyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.papers import bench, ledger

    def broken() -> ledger.Measured:
        raise RuntimeError("fell over")

    monkeypatch.setattr(bench, "experiments", lambda paper: {"igo.small.all": broken})
    code, out, err = trainyard("reproduce", "igo", "--json", "-")
    assert code == 1
    assert next(row for row in json.loads(out) if row["id"] == "igo.small.all")["verdict"] == "off"
    assert "1 experiments failed: igo.small.all" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rum"], "Did you mean 'run'"),
        (["run", "{net}", "--on", "npu", "--bach", "4"], "--batch"),
        (["run", "{net}"], "--on"),
        (["run", "{net}", "--on", "npu", "--batch", "0"], "'--batch'"),
        (["run", "{net}", "--on", "npu", "--batch", "many"], "'--batch'"),
        (["run", "{net}", "--on", "npo"], "did you mean 'npu'"),
        (["run", "{net}", "--on", "systolic"], "is an array, not a machine"),
        (["run", "{net}", "--on", "npu(dram=75 GB/s"], "not closed"),
        (["run", "{net}", "--on", "missing.toml"], "cannot read machine file missing.toml"),
        (["run", "{net}", "--on", "npu", "--set", "dram"], "write path=value"),
        (["run", "{net}", "--on", "npu", "--set", "dramm=4"], "did you mean 'dram'"),
        (["run", "{net}", "--on", "npu", "--set", "batch=4"], "write --batch 4"),
        (["run", "{net}", "--on", "npu", "--set", "clock=1 GHz", "--set", "clock=2 GHz"], "given twice"),
        (["run", "{net}", "--on", "npu", "--parallel", "dataa"], "did you mean 'data'"),
        (["run", "{net}", "--on", "npu", "--dpus", "4"], "dpus"),
        (["run", "{net}", "--on", "npu", "--parallel", "data"], "--parallel is of nodes"),
        (["run", "{net}", "--on", "direct", "--parallel", "data"], "exchange is --algorithm"),
        (["run", "{net}", "--on", "npu", "--by", "layers"], "did you mean 'layer'"),
        (["run", "{net}", "--on", "npu", "--masks", "none.safetensors"], "none.safetensors"),
        (["run", "{net}", "--on", "npu", "--json", "no/such/folder.json"], "cannot write"),
        (["run", "resnet51", "--on", "npu"], "did you mean 'resnet50'"),
        (["run", "net.prototxt", "--on", "npu"], "neither a zoo model nor a file"),
        (["run", "none.csv", "--on", "npu"], "cannot read topology none.csv"),
        (["run", "none.json", "--on", "npu"], "cannot read step none.json"),
        (["run", "none.py:build", "--on", "npu"], "no file none.py"),
        (["run", "none.py", "--on", "npu"], "which function? write none.py:function"),
        (["compare", "{net}", "--on", "npu,,tpu"], "empty machine name"),
        (["compare", "{net}", "--on", "npu,tpi"], "did you mean 'tpu'"),
        (["record", "train", "-o", "x"], "file.py:function"),
        (["record", "none.py:train", "--steps", "-4"], "--steps"),
        (["reproduce", "sigma", "--figure", "99"], "no claim of sigma names '99'"),
    ],
)
def test_mistakes_are_one_line_and_code_2(trainyard: Run, topology: str, words: list[str], says: str) -> None:
    code, out, err = trainyard(*(word.format(net=topology) for word in words))
    assert code == 2
    assert says in in_one_line(err)
    assert out == ""


class AtOnce(Timer):
    """A moment that is over before it begins."""

    def start(self) -> None:
        self.function()
        super().start()

    def run(self) -> None:
        pass


def test_progress_stays_off_stdout(trainyard: Run, topology: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("trainyard.report.terminal.Timer", AtOnce)
    code, out, err = trainyard("compare", topology, "--on", "npu,npu-small", "--json", "-")
    assert code == 0
    assert len(json.loads(out)) == 2
    assert "machines: npu" in err
    assert "alternatives" not in err  # a list of JSON has no ranges: nothing is run for them
    code, out, err = trainyard("whatif", topology, "--on", "npu", "--json", "-")
    assert code == 0
    assert json.loads(out)
    assert "alternatives of npu" in err
    for command in ("run", "compare"):
        code, out, err = trainyard(command, topology, "--on", "npu")
        assert code == 0
        assert "alternatives of npu" in err
        assert "alternatives of npu" not in out


def test_a_bar_waits_a_moment_and_needs_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.report.terminal.MOMENT_S", 60.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress() as step_to:
        step_to(1, 2, "of what is done in a moment")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("trainyard.report.terminal.Timer", AtOnce)
    with progress() as step_to:
        step_to(1, 2, "of what takes longer")
    assert "1/2 of what takes longer" in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    with progress() as step_to:
        step_to(1, 2, "nobody reads")
    assert capsys.readouterr() == ("", "")


def test_damaged_step_files(trainyard: Run, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"format": "trainyard.step", "version": 99}')
    (tmp_path / "cut.json.gz").write_bytes(b"\x1f\x8b\x08")
    assert "version 99" in in_one_line(trainyard("run", str(tmp_path / "old.json"), "--on", "npu")[2])
    assert "cut.json.gz: it ends too early" in in_one_line(trainyard("run", str(tmp_path / "cut.json.gz"), "--on", "npu")[2])


def test_a_step_file_runs(trainyard: Run, topology: str, tmp_path: Path) -> None:
    import gzip

    from trainyard.workloads.formats import read_topology

    text = read_topology(topology).to_json()
    (tmp_path / "step.json").write_text(text)
    (tmp_path / "step.json.gz").write_bytes(gzip.compress(text.encode()))
    times = {
        json.loads(trainyard("run", str(file), "--on", "npu", "--no-range", "--json", "-")[1])["time_s"]
        for file in (topology, tmp_path / "step.json", tmp_path / "step.json.gz")
    }
    assert len(times) == 1


def test_interruption_is_130(trainyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainyard.cli.request.step_of", interrupted)
    code, _, err = trainyard("run", "resnet50", "--on", "npu")
    assert code == 130
    in_one_line(err)


def test_a_fault_of_ours_is_code_1_and_debug_shows_it(trainyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: Any, **__: Any) -> None:
        raise KeyError("nothing")

    monkeypatch.setattr("trainyard.cli.request.step_of", faulty)
    code, _, err = trainyard("run", "resnet50", "--on", "npu")
    assert code == 1
    assert "a fault of trainyard" in in_one_line(err)
    with pytest.raises(KeyError):
        trainyard("--debug", "run", "resnet50", "--on", "npu")


def test_memory_has_the_least_budget_and_the_time_of_a_larger_one(trainyard: Run) -> None:
    code, out, err = trainyard("memory", "resnet50", "--on", "h200", "--batch", "32", "--json", "-")
    assert (code, err) == (0, "")
    plan = json.loads(out)
    assert plan["least_bytes"] == plan["rows"][0]["peak_bytes"]
    budget = f"{plan['rows'][1]['peak_bytes']} B"
    code, out, _ = trainyard("memory", "resnet50", "--on", "h200", "--batch", "32", "--budget", budget)
    assert code == 0
    assert len(out.splitlines()) == 3
    code, _, err = trainyard("memory", "resnet50", "--on", "h200", "--batch", "32", "--budget", "1 MB")
    assert code == 2
    assert "is the least by blocks" in err


def test_help_of_every_command() -> None:
    runner = CliRunner()
    for command in ("run", "compare", "explain", "whatif", "reproduce", "list", "record"):
        result = runner.invoke(cli.app, [command, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.output
    assert cli.main(["--version"]) == 0
    assert cli.main([]) == 0


def test_the_program_as_a_process(topology: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainyard.cli", "run", topology, "--on", "npu", "--no-range", "--json", "-"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["machine"] == "npu"
    wrong = subprocess.run([sys.executable, "-m", "trainyard.cli", "run", topology, "--on", "npo"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stdout == ""
    in_one_line(wrong.stderr)


def test_help_loads_nothing_that_takes_long() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trainyard.cli", "--help"], capture_output=True, text=True, check=True
    )
    assert "reproduce" in done.stdout
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "trainyard" in loaded
    assert not loaded & {"torch", "numba", "numpy", "plotly", "pandas", "scipy", "pydantic"}


TRAINING = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, torch.randn(8, 16), torch.randint(4, (8,)), nn.functional.cross_entropy, optimizer

def train():
    model, inputs, targets, loss, optimizer = build()

    def step():
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()

    return step, model

def model_alone():
    return build()[0]
"""


def test_recorded_masks_run(trainyard: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRAINING)
    masks = tmp_path / "run.safetensors"
    code, out, err = trainyard("record", f"{tmp_path / 'mine.py'}:train", "-o", str(masks), "--steps", "0,2")
    assert code == 0, err
    assert "masks at each of steps 0, 2" in out
    code, out, err = trainyard("run", f"{tmp_path / 'mine.py'}:build", "--on", "npu", "--masks", str(masks), "--json", "-")
    assert code == 0, err
    assert json.loads(out)["workload"] == "mine"
    code, _, err = trainyard("record", f"{tmp_path / 'mine.py'}:model_alone", "-o", str(masks))
    assert code == 2
    assert "must return (train_step, model)" in in_one_line(err)


def test_foreign_masks_are_refused(trainyard: Run, topology: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRAINING)
    masks = tmp_path / "run.safetensors"
    assert trainyard("record", f"{tmp_path / 'mine.py'}:train", "-o", str(masks))[0] == 0
    assert "do not fit step 'small'" in in_one_line(trainyard("run", topology, "--on", "npu", "--masks", str(masks))[2])
    masks.write_bytes(masks.read_bytes()[:-4])
    assert "truncated" in in_one_line(trainyard("run", topology, "--on", "npu", "--masks", str(masks))[2])


def test_show_draws_a_node(trainyard: Run, tmp_path: Path) -> None:
    code, out, err = trainyard("show", "mcdla-s", "--svg", str(tmp_path / "node.svg"))
    assert code == 0
    assert out.startswith('type = "memory-centric"')
    assert err == f"wrote {tmp_path / 'node.svg'}\n"
    drawn = (tmp_path / "node.svg").read_text()
    assert drawn.startswith("<svg")
    for hops in (8, 12, 20):  # Fig. 7b
        assert f"{hops} hops" in drawn


def test_show_says_what_has_no_graph(trainyard: Run, tmp_path: Path) -> None:
    code, out, err = trainyard("show", "npu", "--svg", str(tmp_path / "npu.svg"))
    assert code == 2
    assert out == ""
    assert "npu has no link graph to draw" in in_one_line(err)
    assert list(tmp_path.iterdir()) == []
    code, _, err = trainyard("show", "mcdla-b", "--svg", str(tmp_path / "nowhere" / "x.svg"))
    assert code == 2
    assert "there is no folder" in in_one_line(err)


def test_a_node_is_compared_by_what_its_steps_wait_for(trainyard: Run) -> None:
    code, out, err = trainyard("compare", "ncf", "--on", "dc-dla,mcdla-b", "--batch", "64", "--parallel", "data")
    assert code == 0, err
    for row in ("exposed compute", "exposed synchronisation", "exposed copy", "host memory", "bound by"):
        assert row in out
    assert "warning" not in out


def test_explain_shows_loop_nests_of_the_layers_that_a_pattern_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "bert-tiny", "*.query:forward", "--on", "npu", "--mapping"]) == 0
    shown = capsys.readouterr().out
    assert "parallel for n in 0..128, k in 0..128  # array Systolic ws 128 x 128" in shown
    assert "x the lower bound" in shown
    assert "grad_weight" not in shown
    assert cli.main(["explain", "bert-tiny", "*.query", "--on", "npu", "--mapping", "--json", "-"]) == 0
    nests = json.loads(capsys.readouterr().out)
    assert {nest["phase"] for nest in nests} == {"forward", "grad_input", "grad_weight", "update"}
    assert cli.main(["run", "bert-tiny", "--on", "npu", "--mapping", "--no-range"]) == 0
    assert "streams without tiles" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "bert-tiny", "*.qury", "--on", "npu", "--mapping"], "near it are bert.encoder.layer.0.attention.self.query"),
        (["explain", "bert-tiny", "--on", "h200", "--mapping"], "h200 has no loop nests"),
        (["explain", "bert-tiny", "--on", "npu", "--json", "-"], "--json writes loop nests: add --mapping"),
    ],
)
def test_what_has_no_loop_nests_says_why(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_a_file_of_constraints_fixes_the_mapping(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fixed.toml"
    file.write_text('["*.query"]\ntile = [100, "free", 50]\n["*.key:forward"]\nkeep = "out"\norder = ["mnk", "nmk"]\n')
    words = ["explain", "bert-tiny", "*.query:forward", "--mapping", "--mapping-file", str(file), "--json", "-", "--on"]
    for machine in ("npu", "replicas(device=npu,devices=2,link=25 GB/s)"):
        assert cli.main([*words, machine]) == 0
        assert {tuple(nest["tile"])[::2] for nest in json.loads(capsys.readouterr().out)} == {(100, 50)}
    assert cli.main([*words, "npu(scratchpad=1 KiB)"]) == 2
    assert "tile 100x*x50 of bert.encoder.layer.0.attention.self.query forward needs at least" in capsys.readouterr().err
    assert cli.main([*words, "h200"]) == 2
    assert "h200 has no tile search" in capsys.readouterr().err
    assert cli.main(["run", "bert-tiny", "--on", "npu", "--set", "mapping=*.query tile=64x64x* keep=out", "--no-range"]) == 0
    assert "npu with mapping=*.query tile=64x64x* keep=out" in capsys.readouterr().out
