"""The page on models within a memory budget is what its data gives, and networks are built as their configurations say."""

from __future__ import annotations

import json

import pytest
from overlay_cases import page as overlay_fronts_page


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
