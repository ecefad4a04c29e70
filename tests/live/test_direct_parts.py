"""What of the backend `direct` needs no second process: words on Stores, tokens, reports, prices, decisions of one rank."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import trainyard as ty  # noqa: E402
from trainyard.errors import BadInput, NotModelled, UnknownName  # noqa: E402
from trainyard.hardware.dsc.sync_interval import Interval  # noqa: E402
from trainyard.live import direct  # noqa: E402
from trainyard.live.direct import pricing  # noqa: E402
from trainyard.live.direct.heartbeat import LOST_BEATS, Call, Heartbeat  # noqa: E402
from trainyard.systems.pim.systems import DpuToDpu, HostMediated  # noqa: E402


class Flat:
    def price(self, kind: str, size_bytes: int, world_size: int) -> direct.Price:
        return direct.Price(1.0, 2.0)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one."""
    options = direct.Options(machine=DpuToDpu(dpus=64, cluster_size=16))
    dist.init_process_group("direct", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, pg_options=options)
    yield
    dist.destroy_process_group()


@pytest.fixture(params=["hash", "file", "tcp", "prefix"])
def store(request: Any, tmp_path: Path) -> Any:
    match request.param:
        case "hash":
            return dist.HashStore()
        case "file":
            return dist.FileStore(str(tmp_path / "words"), 1)
        case "tcp":
            return dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=20))
        case _:
            return dist.PrefixStore("prefix", dist.HashStore())


def test_atomic_words_work_on_every_c10d_store(store: Any) -> None:
    mine, other = direct.StoreWords(store), direct.StoreWords(store)
    assert [mine.fetch_add("tickets", 1), other.fetch_add("tickets", 2), mine.read("tickets")] == [0, 1, 3]
    assert mine.read("board") == 0
    assert not mine.compare_swap("board", 5, 6), "the Store answers 5 for a key that is not there"
    assert mine.read("board") == 0
    assert mine.compare_swap("board", 0, 7)
    assert not other.compare_swap("board", 0, 7), "the Store answers 7, as if the second had written it"
    assert mine.compare_swap("board", 7, 1 << 320)
    assert other.read("board") == 1 << 320
    with pytest.raises(BadInput, match="counted with fetch_add"):
        mine.compare_swap("tickets", 3, 4)


def test_swaps_of_many_threads_lose_nothing(tmp_path: Path) -> None:
    server = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=20))

    def count(words: direct.StoreWords) -> None:
        for _ in range(25):
            while not words.compare_swap("sum", value := words.read("sum"), value + 1):
                pass

    threads = [threading.Thread(target=count, args=(direct.StoreWords(server.clone()),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert direct.StoreWords(server).read("sum") == 100


def test_token_errors_name_the_holder_and_the_lost_lease() -> None:
    store = dist.HashStore()
    first, second = direct.Tokens(store, 0, expiry_s=0.2), direct.Tokens(store, 1, expiry_s=0.2, timeout_s=0.05)
    with first:
        with pytest.raises(direct.TokenTimeout, match=r"rank 1 got no token within 0.05 s: rank 0 holds it"):
            second.acquire()
        first.renew()
    ticket = first.acquire()
    patient = direct.Tokens(store, 2, expiry_s=0.2, timeout_s=5.0)
    assert patient.acquire() > ticket  # 0's lease ended, 1's ticket was passed over
    with pytest.raises(direct.TokenLost, match="renew"):
        first.release()
    patient.release()


def test_reports_merge_print_and_survive_json(tmp_path: Path) -> None:
    rows = (direct.Row(kind="barrier", calls=2, real_s=0.5, simulated_s=1e-3, simulated_j=2.0), direct.Row(kind="send", bytes=8))
    one = direct.Report(machine="m", ranks=(1,), wall_s=3.0, rows=rows)
    assert direct.Report.from_dict(json.loads(one.to_json())) == one
    two = direct.Report.merge([one, direct.Report(machine="m", ranks=(0,), wall_s=4.0, rows=rows[1:])])
    assert (two.ranks, two.wall_s, two.total.bytes, two.total.calls, two.simulated_j) == ((0, 1), 4.0, 16, 2, 2.0)
    text = str(one)
    assert "rank 1 on m" in text
    assert "2 J" in text
    assert text.index("barrier") < text.index("send") < text.index("total")
    cells = {
        line.split()[0]: line.split() for line in text.splitlines() if line.split()[:1] and line.split()[0] in ("barrier", "send")
    }
    assert cells["barrier"][4:6] == ["500", "ms"]
    assert cells["send"][2:5] == ["8", "B", "-"]  # gloo did none of it: not 0 s


def test_machines_price_by_cluster(alone: None) -> None:
    system = DpuToDpu(dpus=64, cluster_size=16)
    machine = pricing.machine(system)
    assert machine.price("all_reduce", 4096, 4) == direct.Price(*system.collective("all_reduce", 4096, 4))
    few, many = (machine.price("all_reduce", 4096, clusters) for clusters in (2, 8))
    assert few.seconds < many.seconds
    assert few.joules < many.joules
    for kind in pricing.KINDS:
        assert machine.price(kind, 64, 4).seconds > 0, kind
    assert (
        pricing.machine("pim-opt").price("all_reduce", 4096, 4).seconds
        > pricing.machine("direct").price("all_reduce", 4096, 4).seconds
    )
    assert isinstance(pricing.machine("pim-opt").system, HostMediated)
    with pytest.raises(UnknownName, match="did you mean 'direct'"):
        pricing.machine("dirct")
    with pytest.raises(BadInput, match=r"has price\(kind, size_bytes, world_size\)"):
        pricing.machine(3)
    with pytest.raises(BadInput, match="failure_timeout_s"):
        direct.Options(failure_timeout_s=0.0)


def test_a_run_of_one_cluster_charges_its_steps_and_reductions(alone: None) -> None:
    module = nn.Linear(8, 2)
    step = ty.capture(module, torch.randn(2, 8), torch.tensor([0, 1]), loss=nn.CrossEntropyLoss())
    model = nn.parallel.DistributedDataParallel(module)
    model.register_comm_hook(direct.clusters(), direct.cluster_hook)
    for _ in range(3):
        model(torch.randn(2, 8)).sum().backward()
        direct.charge_step(step)
    report = direct.report()
    rows = {row.kind: row for row in report.rows}
    seconds, joules = DpuToDpu(dpus=16, cluster_size=16).local_step(step)
    assert rows["compute"].calls == 3
    assert rows["compute"].simulated_s == pytest.approx(3 * seconds)
    assert rows["compute"].simulated_j == pytest.approx(3 * joules)
    assert (rows["local_all_reduce"].calls, rows["local_all_reduce"].bytes) == (3, 3 * 72)
    assert report.machine == "DpuToDpu: 16 DPUs in clusters of 16"
    assert report.simulated_s == pytest.approx(sum(row.simulated_s for row in report.rows))
    with pytest.raises(BadInput, match="1 processes do not divide into clusters of 2"):
        direct.clusters(2)


def test_pricing_a_step_needs_a_machine_that_prices_steps(tmp_path: Path) -> None:
    options = direct.Options(machine=Flat(), failure_timeout_s=None)
    dist.init_process_group("direct", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, pg_options=options)
    with pytest.raises(NotModelled, match="prices collectives alone"):
        direct.charge_step(ty.zoo.load("linear"))
    dist.destroy_process_group()
    with pytest.raises(BadInput, match="not `direct`"):
        direct.report()


@pytest.mark.probe
def test_a_rank_is_lost_after_five_silent_beats_unless_it_left() -> None:
    timeout_s = 1.6
    store = dist.HashStore()
    beats = [Heartbeat(store, rank, 3, timeout_s) for rank in range(3)]
    time.sleep(2 * beats[0].beat_s)
    beats[2].stop()  # says goodbye
    silent_s = time.monotonic()
    beats[1]._stop.set()  # as dead processes do, without a word
    errors: list[tuple[float, BaseException]] = []
    call = Call(kind="all_reduce", size_bytes=1_200_000, ranks=frozenset((0, 1)))
    beats[0].watch(call, lambda error: errors.append((time.monotonic() - silent_s, error)))
    while not errors and time.monotonic() - silent_s < 3 * timeout_s:
        time.sleep(0.01)
    ((after_s, error),) = errors
    assert (LOST_BEATS - 1) * beats[0].beat_s < after_s < 1.5 * timeout_s  # a loaded machine is late, not early
    assert re.fullmatch(r"rank 1 was last heard of \d\.\d s ago, during all_reduce of 1.2 MB on rank 0", str(error))
    with pytest.raises(direct.WorkerLost, match="rank 1"):
        beats[0].check(call)
    beats[0].stop()


def test_the_report_is_printed_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = direct.Options(machine=Flat(), report=True)
    dist.init_process_group("direct", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, pg_options=options)
    dist.all_reduce(torch.ones(250))
    group = dist.group.WORLD
    dist.destroy_process_group()
    printed = capsys.readouterr().out
    assert "rank 0 on Flat" in printed
    assert re.search(r"all_reduce +1 +1 kB .* 1 s +2 J", printed)
    with pytest.raises(BadInput, match="all_reduce of 4 B: this process group is destroyed"):
        group.allreduce([torch.ones(1)])


@pytest.mark.probe
@pytest.mark.parametrize("tau", [0, 1, 3])
def test_the_exchange_comes_one_step_after_tau_and_not_before(alone: None, tau: int) -> None:
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    averager = direct.StalenessAverager(tau)
    actual = [averager.average_parameters(model.parameters()) for _ in range(2 * tau + 2)]
    assert actual == ([False] * tau + [True]) * 2
    assert averager.exchanges == 2
    later = direct.StalenessAverager(99)
    later.load_state_dict(averager.state_dict())
    assert (later.tau, later.exchanges, later.step) == (tau, 2, 2 * tau + 2)


def test_ages_in_seconds_are_compared_every_check_every_steps(alone: None) -> None:
    now = [0.0]
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    averager = direct.StalenessAverager(1.0, unit="s", check_every=3, clock=lambda: now[0])
    actual = []
    for time_s in (0.9, 1.1, 1.0, 1.5, 1.6, 1.7, 1.8, 2.6, 2.71):
        now[0] = time_s
        actual.append(averager.average_parameters(model.parameters()))
    assert actual == [False] * 5 + [True] + [False] * 2 + [True]  # exactly tau old is not above it


def test_bad_options_of_the_averager_raise(alone: None) -> None:
    with pytest.raises(BadInput, match="whole number"):
        direct.StalenessAverager(1.5)
    with pytest.raises(BadInput, match="counted in steps"):
        direct.StalenessAverager(1.0, unit="s", adaptive=Interval())
    with pytest.raises(BadInput, match="check_every"):
        direct.StalenessAverager(1, check_every=0)


def test_the_averager_works_in_torchs_post_local_sgd_optimizer(alone: None) -> None:
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = nn.Linear(2, 1)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), direct.StalenessAverager(1))
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert optimizer.averager.exchanges == 2
    assert optimizer.state_dict()["step"] == 4


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(BadInput, match="no complete checkpoint"):
        direct.load(tmp_path, model=model)
    for step in (1, 2, 3):
        direct.save(tmp_path, step=step, model=model, sampler={"epoch": step})
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000002", "step-00000003"]
    (tmp_path / "step-00000004").mkdir()  # a run that died while it saved
    other = nn.Linear(2, 1)
    assert direct.load(tmp_path, model=other) == (3, {"epoch": 3})
    assert torch.equal(other.weight, model.weight)
    with pytest.raises(BadInput, match="holds model; asked for model, optimizer"):
        direct.load(tmp_path, model=other, optimizer=torch.optim.SGD(model.parameters()))
    (tmp_path / "latest.json").write_text(json.dumps({"step": 3, "size": 2, "parts": ["model"]}))
    with pytest.raises(BadInput, match="saved by 2 processes, this run has 1"):
        direct.load(tmp_path, model=other)


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", '{"size": 1}', '{"size": NaN}', "[" * 5000, '"\\ud800"'])
def test_a_damaged_checkpoint_is_one_line_that_names_it(tmp_path: Path, content: str) -> None:
    direct.save(tmp_path, step=1, model=nn.Linear(2, 1))
    (tmp_path / "latest.json").write_text(content)
    with pytest.raises(BadInput, match=str(tmp_path)):
        direct.load(tmp_path, model=nn.Linear(2, 1))


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    direct.save(tmp_path, step=1, model=nn.Linear(2, 1))
    torch.save({"parts": Bomb()}, tmp_path / "step-00000001" / "rank-0.pt")
    with pytest.raises(BadInput, match="Weights only load failed"):
        direct.load(tmp_path, model=nn.Linear(2, 1))
    assert not (tmp_path / "exploded").exists()
