"""Devices and variants of the tests of replayed blocks."""

from __future__ import annotations

import gc

import pytest
import torch

ON_GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")])


@pytest.fixture(params=["cpu", ON_GPU])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param, 0 if request.param == "cuda" else None)  # type: ignore[arg-type]


@pytest.fixture(params=["keep", "checkpoint", pytest.param("selective", marks=pytest.mark.slow)])
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def small_heap() -> None:
    """For files whose tests collect garbage: what earlier files left is not looked at again, which takes two seconds each time."""
    gc.collect()
    gc.freeze()
