"""Profiles of hypothesis: `ci` is derandomised and small, `long` is for `make test-all`. No test sees what another run has kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ci", derandomize=True, max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("long", max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_tests = count()


@pytest.fixture(scope="session")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("kept"))


@pytest.fixture(autouse=True)
def own_cache(_kept: str) -> Iterator[None]:
    """A folder of its own for each test, made when something is kept."""
    before = os.environ.get("TRAINYARD_CACHE")
    os.environ["TRAINYARD_CACHE"] = os.path.join(_kept, str(next(_tests)))
    yield
    if before is None:
        del os.environ["TRAINYARD_CACHE"]
    else:
        os.environ["TRAINYARD_CACHE"] = before
