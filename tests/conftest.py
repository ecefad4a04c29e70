"""Profiles of hypothesis: `ci` is derandomised and small, `long` is for `make test-all`. No test sees what another run has cached.

The thousands of tests that a process collects live as long as it does: the garbage collector never looks at them again, and looks
at what tests leave behind a tenth as often as it would: a tenth of the time of all tests was its own.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

settings.register_profile("ci", derandomize=True, max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("long", max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# `approx` also allows 1e-12 by default, which is more than most joules and many seconds here: beside 0 alone it means something
_scalar = type(pytest.approx(1.0))
_scalar.DEFAULT_ABSOLUTE_TOLERANCE = property(lambda self: 0.0 if self.expected else 1e-12)

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads spin while they wait; there are as many test processes as cores

_tests = count()

gc.disable()  # until all tests are collected


LONGEST = (
    # compile kernels, one after the other in one process, while the other process does what needs none
    "kernels/networks/test_crossbar.py",
    "machines/test_combine.py",
    "hardware/benes/test_network.py",
    "workloads/zoo/test_shipped.py",
    "benchmarks/test_coverage.py",
    "workloads/zoo/test_language.py",
    "workloads/zoo/test_vision.py",
    "live/test_gradient_kernels.py",
    "live/test_direct_processes.py",
    # compile what is left
    "test_machines_page.py",
    "systems/node/test_systems.py",
    "papers/test_igo_readings.py",
    "mapping/levels/test_stages.py",
    # find it compiled, in processes of their own too
    "web/test_browser.py",
    "live/test_direct_example.py",
    "live/test_regions_frameworks.py",
    "report/test_page_in_a_browser.py",
    "test_sparsity_page.py",
    "sweep/test_ray.py",
    "cli/test_cli.py",
    "test_mapping_page.py",
    "workloads/capture/test_scripts.py",
    "papers/test_mcdla.py",
    "mapping/between_layers/test_rows.py",
    "mapping/between_layers/test_between_layers.py",
    "live/test_sparsity_weights.py",
    "cli/test_terminals.py",
    "test_your_own.py",
    "systems/test_deferred_results.py",
    "test_house.py",
    "test_manual.py",
    "live/test_overlay.py",
    "test_recipes_page.py",
    "systems/test_step_columns.py",
    "workloads/capture/test_rebatch.py",
    "workloads/capture/test_frameworks.py",
    "live/test_interleave.py",
    "sweep/test_command.py",
    "sweep/test_executors.py",
    "systems/node/test_devices.py",
    "live/test_gradient_function.py",
)
"""Files that begin first: those that compile most kernels, so that no process waits for another's and those started by later tests
find them compiled, then the longest, so that the last file to end is a short one. (A file is one process's; the order is kept by
`--no-loadscope-reorder`.)"""


SOURCE = Path(__file__).parents[1] / "src"


class ModulesWithExamples:
    """Doctests are looked for in modules that have an example: most have none.

    Those of the package are imported by their name first. Left to itself, pytest loads a file whose package is not imported yet a
    second time, after the package has done so, and its classes then exist twice.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        found = yield
        has_examples = any(isinstance(one, DoctestModule) for one in found) and b">>> " in file_path.read_bytes()
        if has_examples and file_path.is_relative_to(SOURCE):
            parts = file_path.relative_to(SOURCE).with_suffix("").parts
            import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        return [one for one in found if has_examples or not isinstance(one, DoctestModule)]


class FirstImports:
    """In a fresh clone one process imports everything first: the others read the bytecode that it has written.

    They all import the same modules in the same order, so that each would compile everything.
    """

    BYTECODE = Path(__file__).parent / "workloads" / "zoo" / "__pycache__"  # of the last folder
    LONGEST_S = 120.0

    def __init__(self, worker: str, run: str) -> None:
        self.is_first, self.imported = worker == "gw0", Path(tempfile.gettempdir()) / f"trainyard-tests-{run}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        end_s = time.monotonic() + self.LONGEST_S
        if not self.is_first and not self.BYTECODE.exists() and not sys.dont_write_bytecode:
            while not self.imported.exists() and time.monotonic() < end_s:
                time.sleep(0.05)

    def pytest_collection_finish(self) -> None:
        if self.is_first:
            self.imported.touch()

    def pytest_sessionfinish(self) -> None:
        if self.is_first:
            self.imported.unlink(missing_ok=True)


class RoomForFrames:
    """Tests run with room for the frames of deep calls: tracing a model calls as deeply as compilation does."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> object:
        from trainyard.kernels.compilation import call_with_room

        others = session.config.pluginmanager.subset_hook_caller("pytest_runtestloop", remove_plugins=[self])
        return call_with_room(lambda: others(session=session))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ModulesWithExamples())  # for all files: hooks of this file alone are for those beside it
    if "PYTEST_XDIST_WORKER" in os.environ:
        config.pluginmanager.register(FirstImports(os.environ["PYTEST_XDIST_WORKER"], os.environ["PYTEST_XDIST_TESTRUNUID"]))
        config.pluginmanager.register(RoomForFrames())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish() -> None:
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries count at the end what nobody has freed
    gc.set_threshold(*(10 * number for number in gc.get_threshold()))
    gc.enable()
    if "PYTEST_XDIST_WORKER" in os.environ and "NUMBA_CACHE_DIR" in os.environ:
        from shared_compilation import compile_each_kernel_once

        compile_each_kernel_once(Path(os.environ["NUMBA_CACHE_DIR"]) / "locks")


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
