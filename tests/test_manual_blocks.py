"""Every block of the README and of the manual does what it says: commands and Python run in the order of the page, on a copy of the
examples, and outputs are those that are printed there.

What takes long runs in the slow tier, and what needs something else than this computer is named with its reason. A page that has a
test of its own is named with it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trainyard import cli

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))}
FENCED = re.compile(r"(?P<output><!-- output: [^\n]+ -->\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = ("trainyard", "python", "make", "git", "pip", ".")

# fmt: off
OWN_TESTS = {
    "machines.md":        "tests/test_machines_page.py",
    "mapping.md":         "tests/test_mapping_page.py",
    "sparsity.md":        "tests/test_sparsity_page.py",
    "your_own.md":        "tests/test_your_own.py",
    "capture_recipes.md": "tests/test_recipes_page.py",
}
ELSEWHERE = {
    "git clone":               "a clone is what the tests run in",
    "cd ":                     "the tests are there",
    "make":                    "the targets install and run what the tests run: examples/demo.py is run below",
    "pip install":             "installs from a registry",
    ". .venv/bin/activate":    "the tests run in an environment that is active; what follows it is run",
    "trainyard serve":         "tests/web starts it and visits every view",
    "python benchmarks/":      "measures a GPU, or writes a page from such measurements; tests/benchmarks runs the parts",
    "python scripts/train_samples.py": "trains for ten minutes on a GPU",
    "trainyard reproduce":     "tests/papers walks every claim; all of them take many minutes",
}
SLOW = {
    "trainyard compare bert-large":            "machines search tiles for a large model",
    "trainyard compare resnet50":              "several machines, with the range of each",
    "trainyard compare vgg19":                 "four nodes at batch 512",
    "trainyard compare linear --on direct":    "thousands of DPUs, with the range",
    "trainyard run linear --on":               "thousands of DPUs, with the range",
    "trainyard run resnet18 --batch 8 --on 'direct": "thousands of DPUs",
    "trainyard run resnet34":                  "a node at batch 512, with its range",
    "trainyard run resnet50 --batch":          "an order of work for each layer, with the range",
    "trainyard run resnet50 --on tensordash":  "zeros of a whole network, with the range",
    "trainyard run transformer-324m":          "zeros of a large model",
    "trainyard run gpt2-small":                "a large model on a node",
    "trainyard run mixtral-8x7b":              "a large model on a node",
    "trainyard run bert-base":                 "with the range over numbers of formats",
    "trainyard run examples/fsdp_tp.py":       "a script of eight ranks; tests/workloads/capture runs it, too",
    "trainyard memory bert-large":             "a plan for every budget",
    "trainyard export resnet50 --batch 8 --on": "the mapping of every layer",
    "trainyard export alexnet --on mcdla-b":   "a node at batch 512; tests/cli/test_export.py does it, too",
    "trainyard export alexnet --batch 2 --on": "every access of a layer",
    "trainyard whatif":                        "every assumption and parameter, alone and in pairs",
    "trainyard sweep examples/npu_pareto.toml": "200 points",
    "trainyard sweep npu.toml --html":         "60 points",
    "trainyard sweep npu.toml\n":             "60 points",
    "python examples/page_rank.py":            "tests/examples runs it",
    "ty.whatif(":                              "every assumption and parameter",
    "import stacking":                         "24 machines",
    "result.to_perfetto(":                       "a node at batch 512",
    "read_trace(":                             "of a command that is slow",
    "history = train(":                  "trains with 256 workers",
    "ty.compare(":                             "tests/test_readme.py runs it in a process of its own",
}
GIVEN = {
    "attention.md": """
import torch, trainyard as ty
from torch import nn
model, loss = nn.TransformerEncoderLayer(32, 4, batch_first=True), nn.functional.mse_loss
inputs, targets = torch.randn(2, 16, 32), torch.randn(2, 16, 32)
""",
    "overlay_models.md": """
import torch, trainyard as ty
from torch import nn
class Model(nn.Sequential):
    def forward(self, x):
        return super().forward(x).square().mean()  # its own loss, as models of transformers have
model, inputs = Model(*(nn.Linear(64, 64) for _ in range(4))), torch.randn(8, 64)
""",
    "formats.md": """
from pathlib import Path
import onnx
from onnx import helper
from trainyard.machines import machine, write_cfg
Path("network.csv").write_text("Layer, M, N, K,\\nfirst, 64, 32, 16,\\n")
write_cfg(machine("npu"), "scale.cfg")
real = onnx.TensorProto.FLOAT
for name, words in (("model", 8), ("bert", "sequence")):
    ends = [helper.make_tensor_value_info(end, real, ["batch", words, 32]) for end in "xy"]
    weight = onnx.TensorProto(name="w", dims=[32, 32], data_type=real, raw_data=bytes(4096))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    Path(f"{name}.onnx").write_bytes(helper.make_model(graph).SerializeToString())
""",
    "stacking.md": f"import sys\nsys.path.insert(0, {str(ROOT / 'scripts')!r})\n",
}
"""What a page takes for granted, for its Python."""
ON_A_GPU = {"overlay_models.md": "with ty.live.overlay", "attention.md": "with attention_of"}
"""From here on a block of Python is for a GPU."""
# fmt: on


INDENTED = re.compile(rf"(?:^    (?:{'|'.join(PROGRAMS[:2])}) [^\n]*\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block that is no output: fenced, or commands that are indented."""

    place: int
    kind: str
    body: str

    @property
    def commands(self) -> list[str]:
        """The lines that a shell is given, without what is said of them; none of a block that is no commands."""
        comment = r"\s{2,}" if self.kind == "indented" else r"\s+# "
        lines = [re.split(comment, line.strip())[0] for line in self.body.splitlines() if line.strip()]
        shell = self.kind in ("sh", "indented") or (not self.kind and lines[0].startswith(PROGRAMS))
        return [command.strip() for line in lines for command in line.split("&&")] if shell else []


def blocks(page: str) -> list[Block]:
    """In the order of the page."""
    text = PAGES[page].read_text(encoding="utf-8")
    fenced = list(FENCED.finditer(text))
    found = [Block(block.start(), block["kind"], block["body"]) for block in fenced if not block["output"]]
    inside = [range(block.start(), block.end()) for block in fenced]
    found += [
        Block(block.start(), "indented", block[0])
        for block in INDENTED.finditer(text)
        if not any(block.start() in it for it in inside)
    ]
    return sorted(found, key=lambda block: block.place)


def reason(text: str, table: dict[str, str]) -> str:
    """Why a table names what begins with these words; of Python, what has them in it."""
    return next((why for key, why in table.items() if f"{text}\n".startswith(key) or (key.endswith("(") and key in text)), "")


WITH_BLOCKS = [page for page in PAGES if page not in OWN_TESTS and blocks(page)]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Path]:
    """A folder like a clone's, with the examples in it."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    with contextlib.chdir(tmp_path):
        yield tmp_path


def run_page(page: str, yard: Path, *, slow: bool) -> None:
    """All blocks in order; without `slow`, those that take long are passed over."""
    names: dict[str, Any] = {}
    if page == "formats.md":
        pytest.importorskip("onnx")
    exec(GIVEN.get(page, ""), names)
    for block in blocks(page):
        if block.kind == "toml" and (name := re.match(r"# ([\w.]+\.toml)\n", block.body)):
            (yard / name[1]).write_text(block.body)
        if block.kind == "python":
            source = block.body.partition(ON_A_GPU[page])[0] if page in ON_A_GPU else block.body
            if slow or not reason(source, SLOW):
                exec(compile(source, page, "exec"), names)
        for command in block.commands:
            if reason(command, ELSEWHERE) or (reason(command, SLOW) and not slow):
                continue
            program, *words = shlex.split(command)
            if program == "python":
                subprocess.run([sys.executable, *words], check=True, timeout=600)
                continue
            assert program == "trainyard", f"{page}: {command} is neither run nor named with a reason"
            assert cli.main(words) == 0, f"{page}: {command}"


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_the_blocks_of_a_page_run_in_order(page: str, yard: Path) -> None:
    run_page(page, yard, slow=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_all_blocks_of_a_page_run_in_order(page: str, yard: Path) -> None:
    run_page(page, yard, slow=True)


def test_every_reason_is_that_of_a_block() -> None:
    """What is gone from the pages is gone from the tables."""
    texts = [command for page in WITH_BLOCKS for block in blocks(page) for command in block.commands]
    texts += [block.body for page in WITH_BLOCKS for block in blocks(page) if block.kind == "python"]
    for table in (ELSEWHERE, SLOW):
        assert [key for key in table if not any(reason(text, {key: "yes"}) for text in texts)] == []
    assert all((ROOT / test).exists() for test in OWN_TESTS.values())
    assert set(OWN_TESTS) | set(GIVEN) | set(ON_A_GPU) <= set(PAGES)


def manual_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("manual_pages", ROOT / "scripts" / "manual_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OUTPUTS = [
    (page, found["command"], found[0]) for page, path in PAGES.items() for found in manual_pages().BLOCK.finditer(path.read_text())
]
HELPS = [(page, command, block) for page, command, block in OUTPUTS if command.endswith("--help")]
ASKED = """
import shlex, sys
from trainyard import cli
for command in sys.stdin.read().splitlines():
    cli.main(shlex.split(command)[1:])
    print("\\f", end="", flush=True)
"""


def test_the_options_of_every_command_are_as_the_program_prints_them() -> None:
    environment = {**os.environ, **manual_pages().TERMINAL}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], input="\n".join(command for _, command, _ in HELPS), env=environment, capture_output=True,
        text=True, check=True, timeout=120,
    )  # fmt: skip
    shown = dict(zip((command for _, command, _ in HELPS), done.stdout.split("\f"), strict=False))
    assert len(HELPS) > 12
    for page, command, block in HELPS:
        lines = "\n".join(line.rstrip() for line in shown[command].strip("\n").splitlines())
        assert f"$ {command}\n\n{lines}\n```" in block, f"docs/{page} is out of date: scripts/manual_pages.py {page}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("page", "command", "block"), [given for given in OUTPUTS if given not in HELPS], ids=lambda given: given[:40]
)
def test_an_output_is_as_the_program_prints_it(page: str, command: str, block: str) -> None:
    assert f"```text\n{manual_pages().shown(command)}\n```" in block, f"{page} is out of date: scripts/manual_pages.py docs/{page}"
