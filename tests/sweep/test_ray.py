"""The same study on a real Ray cluster of two nodes on this computer: the same bytes, and what is lost with a process is found."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import BadInput
from trainyard.sweep.executors import Inline
from trainyard.sweep.points import Materials
from trainyard.sweep.running import sweep
from trainyard.sweep.study import Study

pytest.importorskip("ray")

TABLE: dict[str, Any] = {
    "name": "both",
    "workloads": ["linear"],
    "machine": "npu",
    "objectives": {"time_s": "min", "energy_j": "min"},
    "axes": {"array.rows": [32, 64, 128], "dram": ["100 GB/s", "200 GB/s"], "order": ["sequential", "interleaved"]},
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two nodes of one CPU each; everything on loopback, nothing told to anybody."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's word for: bind to loopback
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=options)
    cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


@pytest.mark.timeout(240)
def test_two_nodes_give_the_bytes_that_one_process_gives(address: str, tmp_path: Path) -> None:
    from trainyard.sweep.on_ray import Cluster

    executor = Cluster(address)
    assert (executor.workers, executor.nodes) == (2, 2)
    summary = sweep(Study.from_table(TABLE), tmp_path / "ray.sweep", executor)
    assert (summary.points, summary.computed, summary.failed) == (12, 12, 0)
    sweep(Study.from_table(TABLE), tmp_path / "here.sweep", Inline())
    assert (tmp_path / "ray.sweep/points.parquet").read_bytes() == (tmp_path / "here.sweep/points.parquet").read_bytes()


class Killing(Materials):
    """Materials whose machine of 64 rows kills the process that runs it."""

    def run(self, point: Any) -> Any:
        if point.settings["array.rows"] == 64 and point.settings["order"] == "sequential":
            os.kill(os.getpid(), signal.SIGKILL)
        return Materials.run(self, point)


@pytest.mark.slow  # local executors have the same test in the quick tier
@pytest.mark.timeout(240)
def test_a_point_that_kills_its_process_is_recorded_and_the_others_are_run(address: str) -> None:
    from trainyard.sweep.on_ray import Cluster

    study = Study.from_table({**TABLE, "axes": {"array.rows": [32, 64], "order": ["sequential", "interleaved"]}})
    plain = Materials.of(study)
    materials = Killing(plain.steps, plain.masks, plain.machines, plain.plain, plain.extra_metrics, plain.code)
    executor = Cluster(address)
    try:
        begun = executor.map(plain.keyed(study.points()), plain)
        assert not next(begun).failed
        begun.close()  # type: ignore[attr-defined]  # as Ctrl-C does: what is in flight is not answered into the next
        records = list(executor.map(plain.keyed(study.points()), materials))
    finally:
        executor.close()
    assert len(records) == len({record.key for record in records}) == 4
    (failed,) = [record for record in records if record.failed]
    assert failed.settings["array.rows"] == 64
    assert "its process ended" in failed.error


class Endless(Materials):
    """Materials whose machine of 64 rows never ends."""

    def run(self, point: Any) -> Any:
        if point.settings["array.rows"] == 64 and point.settings["order"] == "sequential":
            time.sleep(600)
        return Materials.run(self, point)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_point_over_the_time_limit_is_recorded_and_the_others_are_run(address: str) -> None:
    from trainyard.sweep.on_ray import Cluster

    study = Study.from_table({**TABLE, "axes": {"array.rows": [32, 64], "order": ["sequential", "interleaved"]}})
    plain = Materials.of(study)
    materials = Endless(plain.steps, plain.masks, plain.machines, plain.plain, plain.extra_metrics, plain.code)
    executor = Cluster(address, point_s=5.0)
    try:
        records = list(executor.map(plain.keyed(study.points()), materials))
    finally:
        executor.close()
    (failed,) = [record for record in records if record.failed]
    assert (len(records), failed.settings["array.rows"]) == (4, 64)
    assert "or it took longer than 5 s" in failed.error


def test_no_cluster_at_an_address_is_reported() -> None:
    from trainyard.sweep.on_ray import Cluster

    with pytest.raises(BadInput, match="no Ray cluster at"):
        Cluster("nonsense")
