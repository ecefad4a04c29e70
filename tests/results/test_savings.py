"""What tensors that stay on chip save, against the same run without."""

from __future__ import annotations

import pytest

import trainyard as ty
from trainyard.report import savings as shown
from trainyard.results.savings import sum_of


def test_savings_by_layer_are_the_difference_to_the_run_without_reuse() -> None:
    off, on = (ty.run("ncf", f"npu(reuse={word})", batch=2) for word in ("off", "on"))
    total = sum_of(on.saved())
    assert total.time_s == pytest.approx(off.time_s - on.time_s)
    assert total.dram_bytes == off.traffic_bytes["dram"] - on.traffic_bytes["dram"] > 0
    assert total.energy_j == pytest.approx(off.energy_j - on.energy_j)
    assert sum_of(on.saved("phase"))[:2] == pytest.approx(total[:2])
    assert (off.saved(), off.without_reuse, shown.summary(off), shown.section(off, 9)) == ({}, None, "", [])


def test_the_table_the_page_and_json_name_the_layers_that_save(capsys: pytest.CaptureFixture[str]) -> None:
    result = ty.run("ncf", "npu(reuse=layers)", batch=2)
    result.table(top=3, ranged=False)
    printed = capsys.readouterr().out
    listed = shown.rows(result, 3)
    assert "saved by layer" in printed
    assert all(name in printed for name, _ in listed)
    assert listed[-1][0] == "step"
    assert all(name in "".join(shown.section(result, 99)) for name, _ in listed[:3])
    assert result.as_dict()["saved_by_layer"] == {name: saved.as_dict() for name, saved in result.saved().items()}
    assert "less than with reuse=step" in shown.summary(result)


def test_savings_of_a_system_come_from_its_device() -> None:
    step = ty.zoo.load("ncf", batch=4)
    off, on = (ty.run(step, f"replicas(device=npu(reuse={word}),devices=2,link=25 GB/s)") for word in ("step", "layers"))
    assert sum_of(on.saved()).dram_bytes == off.traffic_bytes["dram"] - on.traffic_bytes["dram"] > 0


def test_a_pipeline_refuses_a_device_that_keeps_tensors_between_layers() -> None:
    with pytest.raises(ty.errors.NotModelled, match="a pipeline runs other microbatches in between"):
        ty.run("ncf", "dc-dla(device=npu(reuse=layers))", parallel="pipeline", batch=16)
