"""The shipped steps: what a fresh capture gives, byte for byte, and the MACs that torch's own counter sees."""

from __future__ import annotations

import gzip
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from importlib import resources
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from trainyard.errors import UnknownName
from trainyard.ir import Convolution, Phase
from trainyard.workloads import zoo
from trainyard.workloads.capture import capture_recipe
from trainyard.workloads.capture.attention.outside import attention_of

LARGE = ("gnmt", "t5-large", "mixtral-8x7b", "video-captioning", "yolov5l")  # others of their kind hold the line in every run
LARGE_COUNTS = (*LARGE, "bert-large", "resnet50", "mask-rcnn")  # smaller ones are made by the same code
LARGE_CAPTURES = (*LARGE, "transformer-324m", "gpt-26b", "bert-large", "faster-rcnn", "mask-rcnn")
SHIPPED = resources.files("trainyard.workloads.zoo") / "steps"


def described(value: Any) -> Hashable:
    """What the form of a result depends on: shapes, strides and types of tensors, all else by value."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple([described(one) for one in value])
    return type(value), value


class OnceForEachForm(TorchDispatchMode):
    """Ops that return new tensors run once for each form of their operands: torch's rules for shapes take long."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[Hashable, list[Any]] = {}
        self.plain: dict[Any, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        plain = self.plain.get(func)
        if plain is None:
            aliases = [one.alias_info for one in (*func._schema.arguments, *func._schema.returns)]
            plain = self.plain[func] = not any(aliases) and {str(one.type) for one in func._schema.returns} == {"Tensor"}
        if not plain:
            return func(*args, **kwargs)
        key = (func, described(args), *((name, described(value)) for name, value in kwargs.items()))
        forms = self.forms.get(key)
        if forms is None:
            result = func(*args, **kwargs)
            results = [result] if len(func._schema.returns) == 1 else result
            self.forms[key] = [one if one is None else (one.shape, one.stride(), one.dtype) for one in results]
            return result
        made = [one if one is None else torch.empty_strided(one[0], one[1], dtype=one[2], device="meta") for one in forms]
        return made[0] if len(made) == 1 else tuple(made)


def grouped_flops(a: Sequence[int], b: Sequence[int], *rest: Any, **options: Any) -> int:
    """torch has no count for grouped products: each row (or summand) of a 2-d operand is multiplied once."""
    return 2 * a[-2] * a[-1] * b[-1]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE_CAPTURES else ()) for name in zoo.names()]
)
def test_the_shipped_step_is_what_a_fresh_capture_gives(name: str) -> None:
    row = zoo.entry(name)
    fresh = capture_recipe(zoo.build(name), name, row.batch)
    shipped = gzip.decompress((SHIPPED / f"{name}.json.gz").read_bytes()).decode()
    assert fresh.to_json() == shipped, "run scripts/regenerate_zoo.py"
    assert fresh.parameters == row.parameters
    assert fresh.rebatchable


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE_COUNTS else ()) for name in zoo.names()]
)
def test_macs_equal_torchs_own_counter(name: str) -> None:
    batch = 2
    recipe = zoo.build(name)
    with torch.device("meta"):
        model = recipe.model()
        inputs, targets = recipe.inputs(batch), recipe.targets(batch)
        kernels = attention_of("cuda") if recipe.attention == "sdpa" else nullcontext()
        with (
            kernels,
            OnceForEachForm(),
            FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: grouped_flops}) as counter,
        ):
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
