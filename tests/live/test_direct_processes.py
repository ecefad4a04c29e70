"""The backend `direct` between real processes on this machine: function, decisions, tokens, checkpoints, death.

This file is also what the processes run: `python test_direct_processes.py FOLDER` forks one for each rank of each scenario when
torch is imported, which takes most of the time. Each writes what it found to FOLDER/SCENARIO/RANK.json; all checks share one start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from trainyard.hardware.dsc.sync_interval import Interval, drift  # noqa: E402
from trainyard.live import direct  # noqa: E402
from trainyard.live.direct.group import session  # noqa: E402

LATENCY_S, BYTES_PER_S, JOULES_PER_BYTE = 1e-6, 1e9, 1e-12
FAILURE_TIMEOUT_S = 5.0
STEPS, TAU, RATE = 9, 2, 0.05
SIZES = {"together": 4, "death": 3}
"""Scenario -> number of ranks."""


class Linear:
    """A machine with a price that a test can work out."""

    def price(self, kind: str, size_bytes: int, world_size: int) -> direct.Price:
        return direct.Price(LATENCY_S * world_size + size_bytes / BYTES_PER_S, JOULES_PER_BYTE * size_bytes * world_size)


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 3))


def batch(rank: int, step: int) -> Any:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(8, 12, generator=generator)
    return x, (x.sum(1) > rank).long()


def flat(model: nn.Module) -> Any:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def backward(model: nn.Module, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    nn.functional.cross_entropy(model(x), y).backward()


# what the processes do


def collectives(rank: int, size: int) -> None:
    """Every collective against what it must give."""
    mine = torch.full((2,), float(rank))
    total = torch.full((2,), size * (size - 1) / 2)

    def check(actual: Any, wanted: Any) -> None:
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0)

    dist.all_reduce(summed := mine.clone())
    check(summed, total)
    work = dist.all_reduce(later := mine.clone(), async_op=True)
    check(work.get_future().wait()[0], total)
    check(later, total)
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    dist.broadcast(sent := mine.clone(), 1)
    check(sent, torch.ones(2))
    dist.reduce(reduced := mine.clone(), 0)
    if rank == 0:
        check(reduced, total)
    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(parts, mine)
    check(torch.stack(parts)[:, 0], torch.arange(float(size)))
    whole = torch.zeros(2 * size)
    dist.group.WORLD._allgather_base(whole, mine).wait()
    check(whole.view(size, 2)[:, 0], torch.arange(float(size)))
    dist.gather(mine, parts if rank == 0 else None, 0)
    dist.scatter(got := torch.zeros(2), parts if rank == 0 else None, 0)
    check(got, mine)
    dist.reduce_scatter(piece := torch.zeros(2), [torch.full((2,), float(place)) for place in range(size)])
    check(piece, mine * size)
    dist.group.WORLD._reduce_scatter_base(piece := torch.zeros(2), torch.arange(2.0 * size)).wait()
    check(piece, torch.tensor([2.0 * rank, 2.0 * rank + 1]) * size)
    dist.all_to_all_single(swapped := torch.zeros(size), torch.arange(float(size)) + 10 * rank)
    check(swapped, torch.arange(size) * 10.0 + rank)
    outputs, inputs = [torch.zeros(2 * size) for _ in range(2)], [mine, mine + 1]
    dist.group.WORLD.allgather_into_tensor_coalesced(outputs, inputs).wait()
    check(outputs[1].view(size, 2)[:, 0], torch.arange(float(size)) + 1)
    neighbour = torch.zeros(2)
    ring = [dist.P2POp(dist.isend, mine, (rank + 1) % size), dist.P2POp(dist.irecv, neighbour, (rank - 1) % size)]
    for request in dist.batch_isend_irecv(ring):
        request.wait()
    check(neighbour, torch.full((2,), float((rank - 1) % size)))
    if rank == 0:
        dist.send(mine, 1)
    elif rank == 1:
        assert dist.recv(torch.zeros(2)) == 0  # from anybody: says from whom
    things: list[Any] = [None] * size
    dist.all_gather_object(things, {"rank": rank})
    assert things[-1] == {"rank": size - 1}
    dist.barrier()


def unmodified_ddp(rank: int, size: int) -> Any:
    """Plain DDP in small buckets: the same parameters on all ranks, and the calls it makes."""
    before = {row.kind: row.calls for row in direct.report().rows}
    model = DistributedDataParallel(network(rank), bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, rank, step)
        optimizer.step()
    calls = {row.kind: row.calls - before.get(row.kind, 0) for row in direct.report().rows}
    return flat(model), {kind: count for kind, count in calls.items() if count}


def algorithm(rank: int, size: int, processes: int) -> Any:
    """DDP with the cluster hook and the averager."""
    cluster = direct.clusters(processes)
    model = DistributedDataParallel(network(0))
    model.register_comm_hook(cluster, direct.cluster_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    averager = direct.StalenessAverager(TAU)
    exchanged = []
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, rank, step)
        optimizer.step()
        exchanged.append(averager.average_parameters(model.parameters()))
    return flat(model), exchanged


def seconds_and_drift(rank: int, size: int) -> dict[str, Any]:
    """Decisions where ranks see different things: clocks that run apart, and an interval that adapts."""
    ticks = iter(range(10_000))
    by_time = direct.StalenessAverager(10.0, unit="s", check_every=2, clock=lambda: next(ticks) * (1.0 + rank))
    model = network(rank)
    backward(model, rank, 0)
    decisions = [by_time.average_parameters(model.parameters()) for _ in range(12)]
    model = network(rank)
    backward(model, rank, 0)
    models = [torch.zeros_like(flat(model)) for _ in range(size)]
    dist.all_gather(models, flat(model))
    apart = drift(torch.stack(models).numpy())
    interval = Interval(1, 64, target=0.1)
    adaptive = direct.StalenessAverager(3, adaptive=interval)
    while not adaptive.average_parameters(model.parameters()):
        pass
    return {"decisions": decisions, "tau": adaptive.tau, "expected_tau": interval.next(4, apart) - 1}


def tokens_in_turn(rank: int, folder: Path) -> list[int]:
    """A critical section that notices a second visitor."""
    inside, tickets = folder / "inside", []
    for _ in range(4):
        with direct.Tokens(session().store, rank, name="turns") as ticket:
            handle = os.open(inside, os.O_CREAT | os.O_EXCL)  # raises if somebody is in
            time.sleep(0.003)
            os.close(handle)
            inside.unlink()
            tickets.append(ticket)
    return tickets


def resumed(rank: int, size: int, folder: Path) -> tuple[Any, Any]:
    """Nine steps in one go, and five of them, a checkpoint, and four by other objects."""

    def parts(seed: int) -> dict[str, Any]:
        model = nn.Sequential(network(seed), nn.Dropout(0.2), nn.Linear(3, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
        return {"model": model, "optimizer": optimizer, "averager": direct.StalenessAverager(TAU)}

    def train(model: Any, optimizer: Any, averager: Any, first: int, last: int) -> None:
        for step in range(first, last):
            optimizer.zero_grad()
            backward(model, rank, step)
            optimizer.step()
            averager.average_parameters(model.parameters())
            if step == 4:
                direct.save(
                    folder / "checkpoints", step=5, model=model, optimizer=optimizer, averager=averager, sampler={"next": 5}
                )

    straight, again = parts(0), parts(7)
    train(**straight, first=0, last=STEPS)
    torch.manual_seed(99 + rank)
    step, sampler = direct.load(folder / "checkpoints", **again)
    assert (step, sampler) == (5, {"next": 5})
    train(**again, first=step, last=STEPS)
    return flat(straight["model"]), flat(again["model"])


def together(rank: int, size: int, folder: Path) -> dict[str, Any]:
    actual: dict[str, Any] = {}
    dist.all_reduce(torch.zeros(250))
    dist.barrier()
    merged = direct.report(merged=True)
    actual["merged"] = merged.to_dict() if merged else None
    collectives(rank, size)
    parameters, actual["ddp_calls"] = unmodified_ddp(rank, size)
    actual["ddp"] = parameters.tolist()
    for processes in (1, 2):
        parameters, actual[f"exchanged_{processes}"] = algorithm(rank, size, processes)
        actual[f"algorithm_{processes}"] = parameters.tolist()
    actual["kinds"] = {row.kind: row.calls for row in direct.report().rows}
    actual.update(seconds_and_drift(rank, size))
    actual["tickets"] = tokens_in_turn(rank, folder)
    straight, again = resumed(rank, size, folder)
    actual["resumed"] = torch.equal(straight, again)
    return actual


def death(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Rank 1 is killed in mid-training with a token in its hands; what the others get, and when."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)), bucket_cap_mb=0.05)
    dist.barrier()
    error, tokens = "", direct.Tokens(session().store, rank, expiry_s=2.0, timeout_s=20.0)
    try:
        for step in range(10_000):
            if rank == 1 and step == 5:
                tokens.acquire()
                (folder / "died").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.randn(4, 64)).sum().backward()
    except RuntimeError as failure:
        error, noticed_s = str(failure), time.time()
    try:
        dist.all_reduce(torch.ones(3))
    except direct.WorkerLost as failure:
        second = str(failure)
    with tokens:
        pass
    return {"error": error, "after_s": noticed_s - float((folder / "died").read_text()), "second": second}


def take_part(scenario: str, rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    options = direct.Options(machine=Linear(), failure_timeout_s=FAILURE_TIMEOUT_S if scenario == "death" else 60.0)
    dist.init_process_group("direct", init_method=f"file://{folder}/store", rank=rank, world_size=size, pg_options=options)
    actual = {"together": together, "death": death}[scenario](rank, size, folder)
    (folder / f"{rank}.json").write_text(json.dumps(actual))
    dist.destroy_process_group()


def main(folder: Path) -> None:
    """Starts all ranks of one scenario after the other and writes how they ended."""
    import torch._dynamo  # noqa: F401  # DDP would import it in each process

    for scenario, size in SIZES.items():
        own = folder / scenario
        own.mkdir()
        ranks = [get_context("fork").Process(target=take_part, args=(scenario, rank, size, own)) for rank in range(size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        (own / "ended.json").write_text(json.dumps([process.exitcode for process in ranks]))


# what is expected of them


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that all processes have written to, and what they said."""
    folder = tmp_path_factory.mktemp("direct")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(folder)]
    started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, said = started.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    return folder, said


def results(scenario: str, ended: tuple[Path, str], lost: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """What the ranks of a scenario found, without those that were lost."""
    folder, said = ended[0] / scenario, ended[1]
    size, codes = SIZES[scenario], json.loads((folder / "ended.json").read_text())
    assert [code for rank, code in enumerate(codes) if rank not in lost] == [0] * (size - len(lost)), said
    assert [codes[rank] for rank in lost] == [-signal.SIGKILL] * len(lost), said
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size) if rank not in lost]


def reference(size: int, processes: int) -> Any:
    """Algorithm 1 with averaging, all clusters in one process."""
    models = [network(0) for _ in range(size // processes)]
    for step in range(STEPS):
        for number, model in enumerate(models):
            model.zero_grad()
            for rank in range(number * processes, (number + 1) * processes):
                backward(model, rank, step)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= RATE * parameter.grad / processes
        if step % (TAU + 1) == TAU:
            mean = torch.stack([flat(model) for model in models]).mean(0)
            for model in models:
                nn.utils.vector_to_parameters(mean.clone(), model.parameters())
    return flat(models[0])


def test_four_processes_train_as_one_would(ended: tuple[Path, str]) -> None:
    ranks = results("together", ended)

    # a price is a whole group's, each rank's share of the joules a quarter
    rows = {row["kind"]: row for row in ranks[0]["merged"]["rows"]}
    assert ranks[1]["merged"] is None
    assert rows["all_reduce"]["bytes"] == 4 * 1000
    assert rows["all_reduce"]["simulated_s"] == pytest.approx(4 * LATENCY_S + 1000 / BYTES_PER_S)
    assert rows["all_reduce"]["simulated_j"] == pytest.approx(4000 * JOULES_PER_BYTE)
    assert rows["barrier"]["simulated_s"] == pytest.approx(4 * LATENCY_S)
    assert rows["all_reduce"]["real_s"] > 0
    assert ranks[0]["merged"]["total"]["calls"] == 2

    # unmodified DDP: shapes compared, parameters sent, a reduction for each bucket of each step
    for actual in ranks:
        assert actual["ddp"] == ranks[0]["ddp"]
        assert set(actual["ddp_calls"]) == {"all_gather", "broadcast", "all_reduce"}
        assert actual["ddp_calls"]["all_reduce"] == 1 + 2 * (STEPS - 1)  # one bucket in the first step, then two

    # Algorithm 1, with one process for a cluster and with two
    for processes in (1, 2):
        wanted = reference(4, processes)
        for actual in ranks:
            assert actual[f"algorithm_{processes}"] == ranks[0][f"algorithm_{processes}"]
            torch.testing.assert_close(torch.tensor(actual[f"algorithm_{processes}"]), wanted, rtol=1e-5, atol=1e-6)
            assert actual[f"exchanged_{processes}"] == [step % (TAU + 1) == TAU for step in range(STEPS)]
    assert ranks[0]["kinds"]["local_all_reduce"] == 2 * STEPS  # one bucket a step, priced by both kinds of cluster

    # decisions are the same everywhere, and those of the largest age: rank 3's clock runs four times as fast as rank 0's
    for actual in ranks:
        assert actual["decisions"] == ranks[0]["decisions"]
        assert actual["tau"] == ranks[0]["tau"] == actual["expected_tau"]
    assert ranks[0]["decisions"].index(True) == 5  # asked at steps 2, 4, 6: rank 3 is 4, 8, 12 s old

    # every ticket once, and nobody found another inside
    assert sorted(ticket for actual in ranks for ticket in actual["tickets"]) == list(range(16))
    assert all(actual["resumed"] for actual in ranks)


def test_a_killed_worker_is_named_on_all_others_in_time_and_its_token_comes_back(ended: tuple[Path, str]) -> None:
    survivors = results("death", ended, lost=(1,))
    for actual, rank in zip(survivors, (0, 2), strict=True):
        assert "WorkerLost: rank 1 was last heard of" in actual["error"]
        assert "during all_reduce of" in actual["error"]
        assert f"on rank {rank}" in actual["error"]
        assert 0 < actual["after_s"] < FAILURE_TIMEOUT_S
        assert "rank 1" in actual["second"]
        assert "all_reduce of 12 B" in actual["second"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
