"""MC-DLA's scale-out study: planes of switches against clusters, and a network that does not fit without paging."""

from __future__ import annotations

import mcdla_scale_out as scale
import pytest


def test_weak_scaling_is_best_on_planes_and_paging_needs_the_pool() -> None:
    chosen = [
        "planes: hierarchical",
        "EDR InfiniBand, MC-DLA nodes",
        "100 Gb Ethernet, MC-DLA nodes",
        "EDR InfiniBand, DC-DLA nodes",
    ]
    rows = scale.weak_scaling(["resnet50"], (64,), chosen)
    efficiencies = {(row.fabric, row.devices, row.overlay): row.efficiency for row in rows}
    assert all(0 < value <= 1 for value in efficiencies.values())
    planes, infiniband, ethernet, _ = (efficiencies[name, 64, "off"] for name in chosen)
    assert planes > infiniband > ethernet
    assert efficiencies[chosen[1], 64, "all"] > 4 * efficiencies[chosen[3], 64, "all"]
    assert len(scale.scaling_table(rows).splitlines()) == 2 + 2 * len(chosen)


@pytest.mark.slow
def test_video_captioning_takes_more_videos_with_the_pool() -> None:
    plain = scale.most(scale.fits_alone)
    assert scale.fits_alone(plain)
    assert not scale.fits_alone(plain + 1)
    row, host = (scale.captioned(system, 8, plain + 1) for system in ("MC-DLA(B)", "DC-DLA, PCIe"))
    assert row is not None
    assert host is not None
    assert row.peak_bytes <= scale.CAPACITY_BYTES < row.before_bytes
    assert row.paged_bytes > 0
    assert row.time_s <= host.time_s
    assert scale.video_table([row, host]).count("\n") == 4
