"""Under every choice and budget the gradients are those of the plain run, bit for bit, and the memory is what was promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.overlay_execution import Memory, Network, gradients
from oracles.overlay_placement import placed
from trainyard.errors import BadInput
from trainyard.mapping.overlay.policy import completed, simulate, with_cost
from trainyard.mapping.overlay.search import Ladder, as_needed
from trainyard.mapping.overlay.stress import offload_all


class Pool:
    """A second memory of bytes."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.moved = 0

    def put(self, name: str, content: bytes) -> None:
        self.contents[name] = content
        self.moved += len(content)

    def get(self, name: str) -> bytes:
        return self.contents.pop(name)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    widths, kinds, reads = [draw(st.integers(1, 6))], [], []
    for op in range(draw(st.integers(1, 9))):
        alike = [value for value in range(op) if widths[value] == widths[op]]
        kind = draw(st.sampled_from(["matmul", "relu", "normalise", *(["add"] if alike else [])]))
        kinds.append(kind)
        reads.append((op, draw(st.sampled_from(alike))) if kind == "add" else (op,))
        widths.append(draw(st.integers(1, 6)) if kind == "matmul" else widths[op])
    return Network(
        batch=draw(st.integers(1, 4)), widths=tuple(widths), kinds=tuple(kinds), reads=tuple(reads), seed=draw(st.integers(0, 9))
    )


def plainly(network: Network) -> dict[str, np.ndarray]:
    """The same network without an overlay, by its own few lines: everything kept in a list."""
    first, weights = network.tensors()
    values = [first]
    for op, kind in enumerate(network.kinds):
        one = values[network.reads[op][0]]
        if kind == "matmul":
            values.append(one @ weights[op])
        elif kind == "relu":
            values.append(np.maximum(one, np.float32(0)))
        elif kind == "add":
            values.append(one + values[network.reads[op][1]])
        else:
            centred = one - one.mean(1, keepdims=True)
            values.append(centred * (1 / ((centred * centred).mean(1, keepdims=True) + 1e-5) ** 0.5))
    into: dict[int, np.ndarray] = {len(values) - 1: values[-1].copy()}
    found = {}
    for op in reversed(range(len(network.kinds))):
        above, kind, source = into.pop(op + 1), network.kinds[op], values[network.reads[op][0]]
        below = above
        if kind == "matmul":
            found[f"weight {op}"], below = source.T @ above, above @ weights[op].T
        elif kind == "relu":
            below = above * (values[op + 1] > 0)
        elif kind == "normalise":
            centred = source - source.mean(1, keepdims=True)
            scale = 1 / ((centred * centred).mean(1, keepdims=True) + 1e-5) ** 0.5
            result = centred * scale
            below = scale * (above - above.mean(1, keepdims=True) - result * (above * result).mean(1, keepdims=True))
        for value in network.reads[op]:
            into[value] = into[value] + below if value in into else below
    return {**found, "input": into[0]}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), name


@settings(max_examples=100, deadline=None)
@given(network=networks(), data=st.data())
def test_any_decisions_give_the_same_gradients(network: Network, data: st.DataObject) -> None:
    problem = network.problem()
    decisions = tuple(data.draw(st.sampled_from(["keep", "send", "recompute"])) for _ in problem.saved)
    least = with_cost(problem, completed(problem, decisions))
    room = data.draw(st.integers(0, 100))
    choice = placed(problem, decisions, least.peak_bytes + room, early=data.draw(st.booleans()))
    pool, memory = Pool(), Memory(least.peak_bytes + room)
    assert_same(gradients(network, choice, pool, memory), plainly(network))
    assert memory.peak_bytes <= choice.peak_bytes <= least.peak_bytes + room
    assert pool.moved == sum(one.bytes for one, fetch in zip(problem.saved, choice.fetch_at, strict=True) if fetch is not None)
    assert not pool.contents


@settings(max_examples=40, deadline=None)
@given(network=networks(), part=st.integers(0, 10))
def test_any_budget_gives_the_same_gradients(network: Network, part: int) -> None:
    problem = network.problem()
    ladder = Ladder(problem)
    budget = ladder.least + (ladder.most - ladder.least) * part // 10
    memory = Memory(budget)
    assert_same(gradients(network, as_needed(problem, budget), Pool(), memory), plainly(network))


@settings(max_examples=40, deadline=None)
@given(network=networks(), window=st.sampled_from([1, 2, None]), recompute=st.sampled_from(["cheap", "none"]))
def test_the_stress_mode_gives_the_same_gradients(network: Network, window, recompute) -> None:  # type: ignore[no-untyped-def]
    choice = offload_all(network.problem(), window=window, recompute=recompute)
    assert_same(gradients(network, choice, Pool(), Memory(choice.peak_bytes)), plainly(network))


MLP = Network(
    batch=8,
    widths=(16, 32, 32, 32, 16, 16),
    kinds=("matmul", "normalise", "relu", "matmul", "relu"),
    reads=((0,), (1,), (2,), (3,), (4,)),
)


@pytest.mark.probe
def test_one_byte_too_few_is_refused() -> None:
    keep = simulate(MLP.problem(), ["keep"] * 5)
    choice = completed(MLP.problem(), ["keep"] * 5)
    needed = Memory(keep.peak_bytes)
    assert_same(gradients(MLP, choice, Pool(), needed), plainly(MLP))
    assert needed.peak_bytes == keep.peak_bytes  # here the count by position is exact
    with pytest.raises(BadInput, match="in use of a budget of"):
        gradients(MLP, choice, Pool(), Memory(keep.peak_bytes - 1))


def test_what_the_store_loses_is_missed() -> None:
    """The bytes that come back are those that were put there: a store that changes one changes the gradients."""

    class Flawed(Pool):
        def get(self, name: str) -> bytes:
            content = bytearray(super().get(name))
            content[1] ^= 0xFF
            return bytes(content)

    choice = completed(MLP.problem(), ["send", "keep", "send", "keep", "keep"])
    found = gradients(MLP, choice, Flawed(), Memory(10**6))
    assert any(found[name].tobytes() != value.tobytes() for name, value in plainly(MLP).items())
