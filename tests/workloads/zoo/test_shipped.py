"""The shipped steps: what a fresh capture gives, byte for byte, and the MACs that torch's own counter sees."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import resources
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainyard.errors import UnknownName
from trainyard.ir import Convolution, Phase
from trainyard.workloads import zoo
from trainyard.workloads.capture import capture_recipe
from trainyard.workloads.capture.attention.outside import attention_of

LARGE = ("gnmt", "t5-large", "mixtral-8x7b")  # others of their kind hold the line in every run
SHIPPED = resources.files("trainyard.workloads.zoo") / "steps"


def grouped_flops(a: Sequence[int], b: Sequence[int], *rest: Any, **options: Any) -> int:
    """torch has no count for grouped products: each row (or summand) of a 2-d operand is multiplied once."""
    return 2 * a[-2] * a[-1] * b[-1]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name == "t5-large" else ()) for name in zoo.names()])
def test_the_shipped_step_is_what_a_fresh_capture_gives(name: str) -> None:
    row = zoo.entry(name)
    fresh = capture_recipe(zoo.build(name), name, row.batch)
    shipped = gzip.decompress((SHIPPED / f"{name}.json.gz").read_bytes()).decode()
    assert fresh.to_json() == shipped, "run scripts/regenerate_zoo.py"
    assert fresh.parameters == row.parameters
    assert fresh.rebatchable


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in zoo.names()])
def test_macs_equal_torchs_own_counter(name: str) -> None:
    batch = 2
    recipe = zoo.build(name)
    with torch.device("meta"):
        model = recipe.model()
        inputs, targets = recipe.inputs(batch), recipe.targets(batch)
        kernels = attention_of("cuda") if recipe.attention == "sdpa" else nullcontext()
        with kernels, FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: grouped_flops}) as counter:
            recipe.loss(model(*inputs), *targets).backward()
    step = zoo.load(name, batch=batch)
    # torch 2.13 counts the weight gradient of a grouped convolution as if it were dense; what it adds is known
    surplus = sum(
        op.macs * (op.body.groups - 1)
        for op in step.ops
        if isinstance(op.body, Convolution) and op.body.groups > 1 and op.phase is Phase.GRAD_WEIGHT
    )
    assert 2 * (step.macs + surplus) == counter.get_total_flops()


def test_the_zoo_is_complete_and_small() -> None:
    files = {file.name.removesuffix(".json.gz") for file in SHIPPED.iterdir()}
    assert files == set(zoo.names())
    assert sum(len(file.read_bytes()) for file in SHIPPED.iterdir()) < 2_000_000


def test_an_unknown_model_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'resnet50'"):
        zoo.load("resent50")
