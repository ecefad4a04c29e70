"""Scripts for many ranks: what they exchange, between whom, how much, and what waits for it; held against real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import trainyard as ty
from trainyard.errors import BadInput, CaptureError
from trainyard.ir import DTYPE_BYTES, Collective, Op, Phase, Role, Step
from trainyard.workloads import named
from trainyard.workloads.capture import capture, world

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Block(nn.Module):
    def __init__(self, width: int = 16, hidden: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


@pytest.fixture
def eight() -> Iterator[None]:
    with world(8):
        yield


def elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def exchanges(step: Step, kind: str = "") -> list[Op]:
    return [step.ops[index] for index in step.exchanges if kind in ("", step.ops[index].body.kind)]  # type: ignore[union-attr]


def sizes(step: Step, kind: str = "") -> list[int]:
    """Bytes of the whole tensors."""
    return [op.body.elements * DTYPE_BYTES[step.tensors[op.inputs[0]].dtype] for op in exchanges(step, kind)]  # type: ignore[union-attr]


def trained(model: nn.Module, shape: tuple[int, ...] = (4, 16), optimizer: Any = torch.optim.SGD, **options: Any) -> Step:
    return capture(model, torch.randn(*shape), loss=total, optimizer=optimizer(model.parameters(), lr=0.1), **options)


def total(output: Any) -> torch.Tensor:
    return (output.to_local() if hasattr(output, "to_local") else output).sum()


def two_blocks() -> nn.Sequential:
    return nn.Sequential(Block(), Block())


def sharded(model: nn.Sequential, mesh: Any, **options: Any) -> nn.Module:
    for part in model:
        fully_shard(part, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def parted(model: nn.Sequential, mesh: Any) -> nn.Sequential:
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


# ---- the process group of a capture
def test_a_group_lasts_as_long_as_its_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    model = Block()

    def train_step(batch: int) -> None:
        dist.init_process_group("nccl")  # as under torchrun
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "4")
        model(torch.randn(batch, 16)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        dist.destroy_process_group()

    step = capture(train_step, model=model, batch=4, world_size=4)
    assert (step.world, step.world_size, step.replicas) == (4, 4, 4)
    assert sum(sizes(step)) == 4 * elements(model)
    assert not dist.is_initialized()
    assert os.environ["RANK"] == "5"
    assert "WORLD_SIZE" not in os.environ
    with world(2), pytest.raises(BadInput, match="has 2 ranks already"):
        capture(train_step, model=model, batch=4, world_size=4)
    with world(2), pytest.raises(BadInput, match="asks for a process group of 16 ranks"):
        dist.init_process_group("gloo", world_size=16)
    with pytest.raises(BadInput, match="positive whole number"), world(0):
        pass


def test_a_model_without_exchanges_is_a_plain_step(eight: None) -> None:
    step = trained(Block())
    assert (step.world, step.world_size, step.exchanges) == (1, 1, ())


def test_a_file_s_own_group_is_taken_down(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "import torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "def build(world=4):\n"
        "    if not dist.is_initialized():\n"
        "        dist.init_process_group('fake', rank=0, world_size=world)\n"
        "    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))\n"
        "    return model, torch.randn(2, 4), None, torch.sum\n"
    )
    assert named.load(f"{file}:build").world_size == 4
    assert not dist.is_initialized()
    assert named.load(f"{file}:build", world=2).world_size == 2
    with pytest.raises(BadInput, match="a script that makes its own exchanges"):
        named.load("resnet50", world=2)


def test_ranks_and_groups_survive_a_file(eight: None) -> None:
    step = trained(parted(two_blocks(), init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "tensor"))["tensor"]))
    again = Step.from_json(step.to_json())
    assert again == step
    assert (again.world, again.replicas) == (8, 2)
    assert {op.body.members for op in exchanges(again)} == {(0, 1, 2, 3)}  # type: ignore[union-attr]
    plain = json.loads(step.to_json())
    del plain["ranks"]
    assert Step.from_json(json.dumps(plain)).world == 1, "files from before there were ranks"
    with pytest.raises(BadInput, match="does not name its 2 ranks"):
        _ = Collective("all_reduce", 4, 2, "5").members


# ---- data parallelism
@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_buckets_are_those_of_ddp(eight: None, options: dict[str, Any]) -> None:
    wide = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(3)))
    model = nn.parallel.DistributedDataParallel(wide, bucket_cap_mb=1, **options)
    step = trained(model, (2, 512))
    assert sizes(step, "all_reduce") == [512 * 512 * 4] * 3
    assert [op.layer for op in exchanges(step)] == ["module.2", "module.1", "module.0"]
    assert {op.phase for op in exchanges(step)} == {Phase.GRAD_WEIGHT}
    assert step.replicas == 8


def test_accumulated_gradients_are_exchanged_once(eight: None) -> None:
    model = nn.parallel.DistributedDataParallel(Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(batch: int) -> None:
        with model.no_sync():
            model(torch.randn(batch, 16)).sum().backward()
        model(torch.randn(batch, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert sum(sizes(capture(train_step, model=model, batch=4))) == 4 * elements(model)


def test_a_communication_hook_is_refused(eight: None) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = nn.parallel.DistributedDataParallel(Block())
    model.register_comm_hook(None, fp16_compress_hook)
    with pytest.raises(CaptureError, match="leave register_comm_hook out"):
        trained(model)


@pytest.mark.oracle
def test_ddp_and_our_own_data_parallelism_agree(eight: None) -> None:
    """The same bytes. DDP copies gradients into buckets and out of them, but its first bucket is full at 1 MiB. Bound: 10 %."""
    wide = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    wrapped = trained(nn.parallel.DistributedDataParallel(wide), (64, 512))
    plain = trained(wide, (8 * 64, 512))
    node = "mcdla-b(overlay=off)"
    own, ours = ty.run(wrapped, node), ty.run(plain, node, bucket_bytes=25 * 2**20)
    assert sum(sizes(wrapped)) == 4 * elements(wide)
    assert own.samples == ours.samples == 8 * 64
    assert own.macs == ours.macs
    assert own.traffic_bytes["link"] == ours.traffic_bytes["link"]
    assert own.time_s == pytest.approx(ours.time_s, rel=0.10)


# ---- sharded parameters
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(widths=st.lists(st.integers(1, 6).map(lambda n: 8 * n), min_size=2, max_size=4), reshard=st.booleans())
def test_fsdp_gathers_twice_and_scatters_once(eight: None, widths: list[int], reshard: bool) -> None:
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))
    whole = 4 * elements(model)
    step = trained(sharded(model, init_device_mesh("cpu", (8,)), reshard_after_forward=reshard), (2, widths[0]))
    forward = [size for op, size in zip(exchanges(step), sizes(step), strict=True) if op.phase is Phase.FORWARD]
    assert sum(forward) == whole
    assert sum(sizes(step, "all_gather")) == (2 if reshard else 1) * whole
    assert sum(sizes(step, "reduce_scatter")) == whole
    layers = {str(number) for number in range(len(model))}
    assert {op.layer for op in exchanges(step)} == layers, "whom a gather is for, whoever runs meanwhile"
    assert step.replicas == 8


def test_mixed_precision_gathers_half_the_bytes(eight: None) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = two_blocks()
    count = elements(model)
    step = trained(sharded(model, init_device_mesh("cpu", (8,)), mp_policy=policy))
    assert sum(sizes(step, "all_gather")) == 2 * 2 * count
    assert sum(sizes(step, "reduce_scatter")) == 4 * count


def test_gathered_parameters_do_not_live_from_forward_to_backward(eight: None) -> None:
    """What backward uses it gathers again, into memory that was given back: no paging between the two."""
    step = trained(sharded(two_blocks(), init_device_mesh("cpu", (8,))), optimizer=torch.optim.AdamW)
    copied = [index for index, op in enumerate(step.ops) if op.name == "fsdp.split_with_sizes_copy"]
    assert len(copied) == 4
    memories = [{step.base(tensor) for tensor in step.ops[index].outputs} for index in copied]
    assert len(set().union(*memories)) == sum(map(len, memories))
    assert len([op for op in step if op.phase is Phase.UPDATE]) == len(
        [t for t in step.tensors if t.view_of is None and t.role is Role.PARAMETER]
    )


# ---- tensor parallelism
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocks=st.integers(1, 3), batch=st.integers(2, 5), width=st.sampled_from([8, 24]))
def test_megatron_s_two_all_reduces(eight: None, blocks: int, batch: int, width: int) -> None:
    """One behind `down` in forward (g), one behind dX of `up` in backward (f), each of the whole activation."""
    model = parted(nn.Sequential(*(Block(width, 4 * width) for _ in range(blocks))), init_device_mesh("cpu", (8,)))
    step = trained(model, (batch, width))
    assert sizes(step) == [4 * batch * width] * 2 * blocks
    assert [op.phase for op in exchanges(step)] == [Phase.FORWARD] * blocks + [Phase.GRAD_INPUT] * blocks
    assert (step.world_size, step.replicas) == (8, 1), "all ranks see the same samples"
    assert step.rebatchable, step.source
    readers = {index for index, waits in enumerate(step.dependencies) if set(waits) & set(step.exchanges)}
    assert len(readers) >= 2 * blocks, "what reads a sum waits for it"


def test_sequence_parallelism_gathers_and_scatters_tokens(eight: None) -> None:
    mesh, model = init_device_mesh("cpu", (8,)), nn.Sequential(Block())
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=True),
    }
    parallelize_module(model[0], mesh, plan)
    tokens = 4 * 8 * 2 * 16 * 4
    step = trained(model, (4, 2, 16))  # each rank has 2 tokens of 16 features
    activations = [op.body.kind for op in exchanges(step) if op.phase is not Phase.UPDATE]  # type: ignore[union-attr]
    assert activations == ["all_gather", "reduce_scatter", "all_gather", "reduce_scatter"]
    assert [size for op, size in zip(exchanges(step), sizes(step), strict=True) if op.phase is not Phase.UPDATE] == [tokens] * 4


# ---- meshes of two axes
def test_both_axes_of_a_mesh(eight: None) -> None:
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "tensor"))
    step = trained(sharded(parted(two_blocks(), mesh["tensor"]), mesh["data"]))
    by_group: dict[str, set[str]] = {}
    for op in exchanges(step):
        by_group.setdefault(op.body.group, set()).add(op.body.kind)  # type: ignore[union-attr]
    assert by_group == {"0,4": {"all_gather", "reduce_scatter"}, "0,1,2,3": {"all_reduce"}}
    assert (step.world_size, step.replicas) == (8, 2)


def test_replicas_of_shards(eight: None) -> None:
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    model = two_blocks()
    whole = 4 * elements(model)
    step = trained(sharded(model, mesh))
    summed = exchanges(step, "all_reduce")
    assert {op.body.members for op in summed} == {(0, 4)}  # type: ignore[union-attr]
    assert sum(sizes(step, "all_reduce")) == whole // 4, "each rank's quarter, over the two copies"
    assert step.replicas == 8


# ---- the manual's and the example's
def test_the_page_s_script_runs() -> None:
    page = (HERE.parents[2] / "docs" / "parallelism.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert names["result"].samples == 8 * 4
    assert names["result"].traffic_bytes["link"] > 0


@pytest.mark.parametrize(("function", "replicas"), [("data_parallel", 8), ("tensor_parallel", 1)])
def test_the_example_runs(function: str, replicas: int) -> None:
    step = named.load(f"{HERE.parents[2] / 'examples' / 'fsdp_tp.py'}:{function}", batch=1)
    assert (step.world_size, step.replicas) == (8, replicas)
    assert ty.run(step, "mcdla-b").by_class["synchronisation"].busy_s > 0


def test_the_example_runs_on_as_many_ranks_as_it_is_given() -> None:
    step = named.load(f"{HERE.parents[2] / 'examples' / 'fsdp_tp.py'}:tensor_parallel", batch=1, world=4)
    assert step.world_size == 4
    assert {op.body.ranks for op in step.ops if isinstance(op.body, Collective)} == {4}


# ---- against torch itself
@pytest.mark.oracle
def test_two_real_processes_exchange_the_same(tmp_path: Path) -> None:
    """Kinds, order and sizes, over gloo on this machine."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(HERE / "two_processes.py"), str(tmp_path)]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        _, said = started.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, said[-2000:]
    real, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert real == other
    for name, make in _scripts().items():
        with world(2):
            step = trained(make())
        assert [[op.body.kind, op.body.elements] for op in exchanges(step)] == real[name], name  # type: ignore[union-attr]
        assert real[name]


def _scripts() -> dict[str, Callable[[], nn.Module]]:
    sys.path.insert(0, str(HERE))
    try:
        import two_processes
    finally:
        sys.path.remove(str(HERE))
    return dict(two_processes.SCRIPTS)
