"""The page on models within a memory budget is what its data gives, and networks are built as their configurations say."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from overlay_cases import page as overlay_fronts_page
from overlay_cases.comparison import comparison


def test_the_page_and_its_figure_are_those_of_the_stored_measurements() -> None:
    data = json.loads(overlay_fronts_page.DATA.read_text(encoding="utf-8"))
    assert overlay_fronts_page.PAGE.read_text(encoding="utf-8") == overlay_fronts_page.text(data)
    assert overlay_fronts_page.FIGURE.read_text(encoding="utf-8") == overlay_fronts_page.figure(data["networks"])


@pytest.mark.parametrize("name", ["llama", "qwen", "vit", "whisper"])
def test_small_networks_train_and_have_their_blocks_as_regions(name: str) -> None:
    from coverage_cases.torchvision_ops import provide

    provide()
    pytest.importorskip("transformers")
    from overlay_cases import networks as overlay_models

    from trainyard.live.paging.regions.finding import regions_of

    network = getattr(overlay_models, name)("cpu", small=True)
    network.step()
    assert {id(region.module) for region in regions_of(network.model)} == {id(block) for block in network.blocks}
    assert all(
        parameter.grad is not None for block in network.blocks for parameter in block.parameters() if parameter.requires_grad
    )


OTHERS = {
    "transformers:gpt2?n_layer=2&n_embd=32&n_head=2&vocab_size=64&batch=2&length=8": 2,
    "transformers:mistral?hidden_size=32&intermediate_size=64&num_hidden_layers=2&num_attention_heads=2&num_key_value_heads=1"
    "&vocab_size=64&sliding_window=4&batch=2&length=8": 2,
    "transformers:t5?d_model=16&d_ff=32&num_layers=2&num_heads=2&d_kv=8&vocab_size=64&batch=2&length=8": 10,
    "transformers:beit?hidden_size=16&num_hidden_layers=2&num_attention_heads=2&intermediate_size=32&image_size=32&batch=2": 2,
    "torchvision:efficientnet_b0?batch=2&side=32": 16,
    "timm:deit_tiny_patch16_224?batch=2": 12,
}


@pytest.mark.parametrize("spec", OTHERS, ids=lambda spec: spec.partition("?")[0])
def test_any_network_is_built_by_its_specification_and_trains(spec: str) -> None:
    from coverage_cases.torchvision_ops import provide
    from overlay_cases.others import network_of

    provide()
    pytest.importorskip(spec.partition(":")[0])

    network = network_of(spec, "cpu").with_optimizer()
    network.step()
    assert len(network.blocks) == OTHERS[spec]
    assert any(parameter.grad is not None for parameter in network.model.parameters())


def test_a_function_in_a_file_is_a_network_too_and_anything_else_is_refused(tmp_path: Path) -> None:
    from overlay_cases.others import network_of

    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def build(device):\n"
        "    block = lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)\n"
        "    model = torch.nn.Sequential(block(), block()).to(device)\n"
        "    return model, torch.ones(2, 3, 8, device=device), lambda result: result.square().mean()\n"
    )
    network = network_of(f"{file}:build", "cpu")
    network.step()
    assert len(network.blocks) == 2
    with pytest.raises(SystemExit, match="is none of vit-l"):
        network_of("resnet", "cpu")
    with pytest.raises(SystemExit, match="cannot be read"):
        network_of(f"{tmp_path}/none.py:build", "cpu")


def test_a_front_has_every_alternative_and_the_overlay_at_its_peak(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from overlay_cases.fronts import Front
    from overlay_cases.turns import Repeats

    front = Front(next(iter(OTHERS)), (), with_cpu=True, device="cpu")
    front.repeats = Repeats(rounds=1, seconds=0.0, steps=1, warm=0)
    front.prepare()
    *_, document = front.rows()
    assert [row["name"] for row in document["alternatives"]] == [
        "plain",
        "gradient checkpointing",
        "selective checkpointing",
        "save_on_cpu",
    ]
    assert all(row["ms"] > 0 for row in document["alternatives"])
    beside = [(row["beside"], row.get("unit", "blocks")) for row in document["overlay"]]
    assert beside == [
        ("plain", "blocks"),
        ("plain", "blocks"),
        ("gradient checkpointing", "blocks"),
        ("selective checkpointing", "blocks"),
        ("save_on_cpu", "tensors"),
    ]
    assert all(row["equal_bits"] for row in document["overlay"][:4]) or not document["plain_repeats_its_bits"]
    assert document["complete"]
    assert not front.network.model._forward_pre_hooks


def test_networks_that_a_file_has_completely_are_not_measured_again(tmp_path: Path) -> None:
    from overlay_cases.workers import finished

    out = tmp_path / "out.json"
    assert finished(out) == []
    out.write_text(json.dumps({"networks": [{"name": "a", "complete": True}, {"name": "b"}]}))
    assert [network["name"] for network in finished(out)] == ["a"]


def test_caches_are_filled_with_every_share_of_blocks_and_the_asked_shares_of_the_whole() -> None:
    from overlay_cases.workers import Request

    request = Request(specs=("a", "b"), shares=(1.0, 0.5), compiled=("a",), to_cpu=())
    orders = request.fillers_of("a")
    assert [(order["fill"], order["whole"]) for order in orders] == [(1.0, True), (0.5, True), (0.2, False), (0.0, False)]
    assert request.fillers_of("b") == []
    slow = Request(specs=("a",), shares=(1.0,), compiled=(), to_cpu=(), compiled_first=("a",))
    parts = [(order["fill"], order["whole"], order["blocks"]) for order in slow.fillers_of("a")]
    assert parts == [(1.0, True, False), (1.0, False, True), (0.5, False, True), (0.2, False, True), (0.0, False, True)]


def test_large_networks_are_compiled_one_share_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from overlay_cases import workers

    class Process:
        def poll(self) -> None: ...

    monkeypatch.setattr(workers, "start", lambda order, cores: Process())
    request = workers.Request(specs=("llama-7b", "vit-l"), shares=(1.0,), compiled=(), to_cpu=())
    orders = [*request.fillers_of("llama-7b"), *request.fillers_of("vit-l")]
    cores = workers.Cores(measuring=(0,), others=tuple(range(6)))
    run = workers.Run(request, tmp_path / "out.json", tmp_path, [], ["llama-7b", "vit-l"], cores=cores, orders=orders)
    run.step()
    assert [filler.spec for filler in run.fillers] == ["llama-7b", *["vit-l"] * 4]
    assert [order["spec"] for order in run.orders] == ["llama-7b"] * 3


@pytest.mark.parametrize("quiet_s", [0.0, 3600.0])
def test_nothing_is_measured_before_everything_is_compiled_unless_that_takes_too_long(
    quiet_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overlay_cases import workers

    codes: dict[str, int | None] = {"a": None, "b": None}

    class Process:
        def __init__(self, spec: str) -> None:
            self.spec = spec

        def poll(self) -> int | None:
            return codes[self.spec]

    class Worker:
        def __init__(self, number: int, spec: str, *_: object) -> None:
            self.spec, self.is_over, self.beside = spec, False, None
            self.is_ready = True

        def go(self, beside: list[str]) -> None:
            self.beside = beside

        def document(self) -> None: ...

    monkeypatch.setattr(workers, "start", lambda order, cores: Process(order["spec"]))
    monkeypatch.setattr(workers, "Worker", Worker)
    request = workers.Request(specs=("a", "b"), shares=(1.0,), compiled=(), to_cpu=(), quiet_s=quiet_s)
    orders = [*request.fillers_of("b"), *request.fillers_of("a")]
    cores = workers.Cores(measuring=(0,), others=tuple(range(1, 9)))
    run = workers.Run(request, tmp_path / "out.json", tmp_path, [], ["a", "b"], cores=cores, orders=orders)
    monkeypatch.setattr(workers.Run, "write", lambda run: None)
    run.step()
    codes["b"] = 0
    run.step()
    assert (run.measured is not None) is (quiet_s == 0)
    codes["a"] = 0
    run.step()
    assert run.measured is not None
    assert (run.measured.spec, run.measured.beside) == (("b", ["a"]) if quiet_s == 0 else ("a", []))


def test_a_network_is_compiled_whole_and_block_by_block_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from coverage_cases.torchvision_ops import provide
    from overlay_cases import caches
    from overlay_cases.others import network_of

    from trainyard.live.paging.regions import variants

    provide()
    pytest.importorskip("timm")
    built = []
    monkeypatch.setattr(caches, "network_of", lambda spec, device: built.append(network_of(spec, device)) or built[-1])
    graphs: list[tuple[int, bool]] = []
    aot_eager = variants.backend_of

    def recorded(share: float, compiler: str) -> object:
        backend = aot_eager(share, "aot_eager")

        def compile_graph(graph: torch.fx.GraphModule, inputs: list[object]) -> object:
            graphs.append((len(graph.graph.nodes), any(getattr(value, "requires_grad", False) for value in inputs)))
            return backend(graph, inputs)

        return compile_graph

    monkeypatch.setattr(variants, "backend_of", recorded)
    caches.fill_caches("timm:deit_tiny_patch16_224?batch=2&depth=2", 0.5, whole=True, device="cpu", compiler="aot_eager")
    (whole, _), *blocks = graphs
    assert len(blocks) == 1, "blocks of one kind are compiled once"
    assert blocks[0][0] < whole
    assert all(has_gradients for _, has_gradients in graphs)
    model = built[0].model
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_checkpointing_of_transformers_leaves_no_attribute_on_layers() -> None:
    pytest.importorskip("transformers")
    from overlay_cases.alternatives import gradient_checkpointing
    from overlay_cases.others import network_of

    network = network_of("transformers:gpt2?n_layer=2&n_embd=32&n_head=2&vocab_size=64&batch=2&length=8", "cpu")
    before = [set(module.__dict__) for module in network.model.modules()]
    with gradient_checkpointing(network):
        assert any(getattr(module, "gradient_checkpointing", False) for module in network.model.modules())
        network.step()
    assert [set(module.__dict__) for module in network.model.modules()] == before


def test_the_table_of_any_networks_says_which_alternatives_are_faster_and_how_far_the_same_code_differs() -> None:
    alternatives = [
        {"name": "plain", "ms": 100.0, "gib": 8.0},
        {"name": "torch.compile, budget 0.5", "ms": 80.0, "gib": 4.0},
        {"name": "torch.compile, budget 0.2", "refused": "no memory"},
    ]
    kept = {"variants": {"keep": 3}, "whole_share": None, "compile": False}
    whole = {"variants": {"keep": 3}, "whole_share": 0.5, "compile": True}
    overlays = [
        {"beside": "plain", "ms": 104.0, "gib": 8.0, "budget_gib": 8.1, **kept},
        {"beside": "plain", "ms": 79.0, "gib": 8.2, "budget_gib": 8.1, **whole},
        {"beside": "torch.compile, budget 0.5", "ms": 82.0, "gib": 4.0, "budget_gib": 4.1, **whole},
        {"beside": "plain", "compile": False, "budget_gib": 1.0, "refused": "nothing fits"},
    ]
    text = " ".join(comparison([{"name": "mine", "alternatives": alternatives, "overlay": overlays}]))
    assert "slower than 1 of 2 alternatives: torch.compile, budget 0.5 of mine (80.0 ms, the overlay 82.0, the same code)" in text
    assert "above their budgets: mine at 8.10 GiB (8.20)" in text
    assert "In 2 comparisons both sides run the same code" in text
    assert "0.96 to 0.98 times as fast" in text


def test_turns_go_on_until_a_difference_is_known_and_a_busy_host_does_not_decide() -> None:
    from overlay_cases import turns

    class Clock:
        """Steps of two ways, the second 5 % faster; every third round the host is busy, for one of them or the other."""

        def __init__(self) -> None:
            self.round = 0

        def time(self, network: object, samples: turns.Samples, steps: int, warm: int, *, of_host: bool, pages: object) -> None:
            base = 100.0 if samples is slow else 95.0
            if samples is slow:
                self.round += 1
            is_busy = self.round % 3 == 0 and (self.round % 2 == 0) is (samples is slow)
            samples.turns.append([base * (3.0 if is_busy else 1.0)] * steps)

    slow, fast = turns.Samples(), turns.Samples()
    ways = [(nullcontext, slow), (nullcontext, fast)]
    turns.take_turns(None, Clock(), turns.Repeats(rounds=5, seconds=60.0), ways)  # type: ignore[arg-type]
    ratio, error = turns.compared(slow, fast)
    assert ratio == pytest.approx(100 / 95)
    assert error <= turns.ERROR
    assert len(slow.turns) == len(fast.turns) >= 5


def test_turns_end_when_their_time_is_up() -> None:
    from overlay_cases import turns

    values = iter([100.0, 50.0, 100.0, 200.0, 100.0, 10.0])

    class Clock:
        def time(self, network: object, samples: turns.Samples, steps: int, warm: int, *, of_host: bool, pages: object) -> None:
            samples.turns.append([next(values)])

    one, other = turns.Samples(), turns.Samples()
    turns.take_turns(None, Clock(), turns.Repeats(rounds=3, seconds=0.0), [(nullcontext, one), (nullcontext, other)])  # type: ignore[arg-type]
    assert turns.compared(one, other)[1] > turns.ERROR
    assert len(one.turns) == 3
