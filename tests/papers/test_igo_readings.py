"""Readings of IGO's evaluation: the ledger's own gives the machine's numbers, fast walks equal general ones, a search goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import Systolic
from trainyard.errors import BadInput
from trainyard.ir import MatMul
from trainyard.mapping.gradient_order.scratchpad import Pair
from trainyard.mapping.gradient_order.tile_streams import ALL_ORDERS, Partition
from trainyard.mapping.tiling import Supply
from trainyard.papers.igo import measuring, partitioning, performance, reading_claims, reading_search, readings
from trainyard.papers.igo.baselines import LARGE, SMALL, Case
from trainyard.papers.igo.judging import TWINS, evidence, with_evidence
from trainyard.papers.igo.reading_page import candidates, described, objections, page
from trainyard.papers.igo.readings import DEFAULT_WALK, TIMINGS, TileWalk
from trainyard.papers.ledger import Claim, Measured, claims, judge, within

QUICK = ("dlrm", "bert")


@pytest.fixture
def two_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (readings, reading_claims, measuring, partitioning):
        monkeypatch.setattr(module, "ABBREVIATIONS", QUICK)
    monkeypatch.setattr(measuring, "workers", lambda: None)
    readings.workload.cache_clear()
    reading_claims._choices.cache_clear()
    yield
    readings.workload.cache_clear()
    reading_claims._choices.cache_clear()


@st.composite
def walked(draw: Any) -> Any:
    op = MatMul(*(draw(st.integers(1, 9)) for _ in range(3)), count=draw(st.sampled_from([1, 1, 2, 3, 5])))
    dense, wider = Pair.dense(op, 2), draw(st.sampled_from([1, 2]))
    sums = (dense.sums[0] * wider, dense.sums[1] * wider)
    pair = replace(dense, alone=draw(st.booleans()), sums=sums, resident=(*dense.resident[:3], *sums))
    tile = tuple(draw(st.integers(1, 4)) for _ in range(3))
    partition = draw(st.none() | st.builds(Partition, axis=st.sampled_from("mnk"), parts=st.integers(1, 4)))
    room = pair.needed(tile) * draw(st.floats(1.0, 4.0))
    supply = Supply(
        resident_bytes=room, bytes_per_cycle=draw(st.sampled_from([0.5, 1.7, 8])), latency_cycles=draw(st.integers(0, 9))
    )
    return pair, tile, draw(st.sampled_from(ALL_ORDERS)), partition, supply


@pytest.mark.oracle
@settings(max_examples=150, deadline=None)
@given(walked(), st.sampled_from(["lru", "window"]))
def test_fast_walks_and_timings_are_the_general_ones(case: Any, policy: Any) -> None:
    pair, tile, order, partition, supply = case
    tables = readings._tables(replace(pair.op, count=1), pair.alone, False, Systolic(rows=2, columns=3), tile, partition)
    given_all = (pair, tile, order, policy, partition, supply.resident_bytes, tables)
    fast, general = readings.walked_alone(*given_all), readings.walked_in_general(*given_all)
    for ours, theirs in zip(fast, general, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    found = readings.timings(fast, pair.op.count, policy, supply, (1.0, 0.5))
    for column, share in enumerate((1.0, 0.5)):
        assert readings.plain_timings(fast, pair.op.count, policy, supply, share) == found[:, column].tolist()


READINGS = [
    DEFAULT_WALK,
    TileWalk(tile=(4, 1, 2), element_bytes=2, sum_bytes=2, reuse="window"),
    TileWalk(tile=(2, 2, 1), im2col="raw", k_inner=True),
]


@pytest.mark.oracle
@pytest.mark.parametrize("walk", READINGS, ids=str)
def test_a_reading_on_the_default_timing_takes_the_machines_cycles(walk: TileWalk, two_networks: None) -> None:
    """Every product of a network, costed by the machine itself, on one core and on two."""
    for case, names in (
        (SMALL, {"sequential": {}, "interleaved": {"order": "interleaved"}, "no_second_dy": {"order": "no_second_dy"},
                 "n": {"order": "paper_mnk" if walk.k_inner else "paper", "partition": "n"},
                 "dw_major": {"order": "dw_major_nmk" if walk.k_inner else "dw_major"}}),
        (Case(cores=2), {"sequential": {}, "n": {"order": "paper_mnk" if walk.k_inner else "paper", "partition": "n"}}),
    ):  # fmt: skip
        costs = readings.walk_costs(walk, case)
        for name, order in names.items():
            found = reading_claims.steps(costs, name)[:, TIMINGS.index(readings.DEFAULT_TIMING), 0]
            for number, network in enumerate(QUICK):
                step = measuring.network_step(network, case.npu, measuring.batch(case), case.recommender_batch)
                machine = walk.machine(case, **order)
                whole = sum(machine.cost(step, work).cycles for work in machine.works(step) if step.ops[work.ops[0]].is_product)
                assert found[number] == whole, (name, network)


@pytest.mark.oracle
def test_the_ledgers_reading_gives_the_ledgers_numbers(two_networks: None) -> None:
    partitioning.evaluation.cache_clear()
    place = TIMINGS.index(readings.DEFAULT_TIMING)
    found = {claim: value[place] for claim, value in reading_claims.searched(DEFAULT_WALK).items()}
    assert found["dy_share.reads.dlrm"] == pytest.approx(performance.dy_share(LARGE, "dlrm", reads=True))
    assert found["potential.small"] == pytest.approx(np.mean([performance.potential(SMALL, network) for network in QUICK]))
    for npu, case in (("small", SMALL), ("large", LARGE)):
        for claim, order in (("interleaving", "interleaved"), ("rearrangement", "paper")):
            expected = np.mean([
                measuring.reduction(measuring.step_cost(case, n).cycles, measuring.step_cost(case, n, order=order).cycles)
                for n in QUICK
            ])  # fmt: skip
            assert found[f"{npu}.{claim}"] == pytest.approx(expected)
        chosen = partitioning.chosen.__wrapped__(case)
        expected = np.mean([measuring.reduction(measuring.step_cost(case, n).cycles, chosen.knn[n]) for n in QUICK])
        assert found[f"{npu}.all"] == pytest.approx(expected)
    partitioning.evaluation.cache_clear()


def test_every_walk_leaves_room_for_an_operation() -> None:
    every = readings.walks((1, 16))
    assert DEFAULT_WALK in every
    assert len(set(map(str, every))) == len(every)
    assert not any(walk.tile == (16, 16, 16) for walk in every)
    assert {(walk.element_bytes, walk.sum_bytes) for walk in every} == {(2, 2), (2, 4), (4, 4)}


# the search


def invented(walk: TileWalk) -> list[list[float]]:
    """Numbers near the paper's, nearer the taller the tile is."""
    off = 1 + 0.4 / walk.tile[0]
    return [[reading_claims.stated(claim) * off for claim in reading_search.SEARCHED] for _ in TIMINGS]


def invented_held_out(walk: TileWalk) -> list[list[float]]:
    return [[reading_claims.stated(claim) for claim in reading_search.HELD_OUT] for _ in TIMINGS]


SPACE = [TileWalk(tile=(m, 1, k)) for m in (1, 2, 4) for k in (1, 2)]


def test_a_search_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[TileWalk] = []

    def counted(walk: TileWalk) -> list[list[float]]:
        if len(measured) == 4:
            raise KeyboardInterrupt
        measured.append(walk)
        return invented(walk)

    monkeypatch.setattr(reading_search, "_measured", counted)
    monkeypatch.setattr(reading_search, "_measured_held_out", invented_held_out)
    with pytest.raises(KeyboardInterrupt):
        reading_search.search(tmp_path, space=SPACE)
    assert not (tmp_path / reading_search.RESULT).exists()
    with (tmp_path / reading_search.JOURNAL).open("a") as file:
        file.write('{"key": "a line that was being wri')
    again: list[TileWalk] = []
    monkeypatch.setattr(reading_search, "_measured", lambda walk: again.append(walk) or invented(walk))  # type: ignore[func-returns-value]
    seen: list[tuple[int, int]] = []
    result = reading_search.search(tmp_path, lambda done, total, message="", /: seen.append((done, total)), space=SPACE)
    assert len(set(map(str, again[1:])) & set(map(str, measured))) == 0  # one walk is measured again as a check, no other
    assert len(measured) + len(again) - 1 == len(SPACE) + 1 == result["walks"]
    assert (4, 7) in seen
    whole = reading_search.search(tmp_path / "whole", space=SPACE)
    assert whole == result
    assert json.loads((tmp_path / reading_search.RESULT).read_text()) == result


def test_a_search_counts_ranks_and_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_search, "_measured", invented)
    monkeypatch.setattr(reading_search, "_measured_held_out", invented_held_out)
    result = reading_search.search(tmp_path, space=SPACE)
    every = len(reading_search.SEARCHED) + len(reading_search.HELD_OUT)
    assert result["readings"] == 7 * len(TIMINGS)
    assert result["best"][0]["reached"] == every
    assert result["best"][0]["walk"]["tile"] == [16, 1, 1]
    assert result["reached_by"]["small.all"] == 3 * len(TIMINGS)  # 4 x 1 x k and 16 x 1 x 1
    assert result["defensible"] == 3 * sum(timing.writes for timing in TIMINGS)
    assert all(one["timing"]["writes"] and one["defensible"] for one in result["nearest_defensible"])
    written = (tmp_path / reading_search.PAGE).read_text()
    assert written == page(json.loads(json.dumps(result)))
    assert f"reaches {every} of {every} claims: tile 16x1x1" in written


def test_a_journal_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_search, "_measured", invented)
    monkeypatch.setattr(reading_search, "_measured_held_out", invented_held_out)
    reading_search.search(tmp_path, space=SPACE)
    monkeypatch.setattr(reading_search, "_measured", lambda walk: [[1.0] * 15] * 12)
    with pytest.raises(BadInput, match="other numbers for tile"):
        reading_search.search(tmp_path, space=SPACE)
    journal = tmp_path / reading_search.JOURNAL
    journal.write_text(journal.read_text().replace('"igo"', '"other"', 1))
    with pytest.raises(BadInput, match="another search or version"):
        reading_search.search(tmp_path, space=SPACE)
    journal.write_text("no journal")
    with pytest.raises(BadInput, match="no journal of a search"):
        reading_search.search(tmp_path, space=SPACE)


# the result that ships with the package, and the verdicts that rest on it


COVERED = (*reading_search.SEARCHED, *reading_search.HELD_OUT, *TWINS)


def claim_of(name: str) -> Claim:
    return next(claim for claim in claims() if claim.id == f"igo.{name}")


def test_the_stored_result_is_of_this_search() -> None:
    result = reading_search.stored()
    every = {DEFAULT_WALK, *readings.walks()}
    assert result["grid"] == reading_search.grid_digest(every)
    assert result["walks"] == len(every)
    assert result["readings"] == len(every) * len(TIMINGS) == sum(result["counts"].values())
    assert result["defensible"] == sum(result["counts_defensible"].values())
    assert result["written_by"].startswith(reading_search.COMMAND)
    assert all(one["defensible"] and not objections(one) for one in result["nearest_defensible"])
    assert all(one["defensible"] != bool(objections(one)) for one in result["best"])
    manual = Path(__file__).parents[2] / "docs" / reading_search.PAGE
    assert manual.read_text(encoding="utf-8") == page(result)


@pytest.mark.oracle
def test_the_nearest_defensible_reading_gives_its_stored_numbers() -> None:
    """Measured anew: the stored result is of this state of the model."""
    stored = reading_search.stored()["nearest_defensible"][0]
    walk = TileWalk(**{**stored["walk"], "tile": tuple(stored["walk"]["tile"])})
    place = TIMINGS.index(readings.Timing(**stored["timing"]))
    for claim, values in reading_claims.searched(walk).items():
        assert values[place] == pytest.approx(stored["values"][claim], abs=1e-4), claim


@pytest.mark.parametrize("name", COVERED)
def test_a_miss_that_was_searched_is_open_with_its_numbers(name: str) -> None:
    result, claim = reading_search.stored(), claim_of(name)
    source = TWINS.get(name, name)
    nearest = result["nearest_defensible"][0]
    found = evidence(name, result)
    assert found is not None
    assert within(found) == nearest["reached"] <= found.best < len(found.numbers)
    assert found.numbers[claim.id] == nearest["values"][source]
    ours = result["ours"]["values"][source]
    row = judge(claim, with_evidence(claim, Measured(ours, note="Ours.", details="More."), result))
    if reading_claims.reached(source, ours):
        assert row.verdict in ("met", "near")
        assert row.evidence is None
        return
    assert row.verdict == "open"
    assert row.details.startswith("Ours. More. Taken by itself, the printed figure is reached by ")
    for part in (
        f"{result['readings']:,} readings",
        f"{found.best} within 15 %",
        described(nearest),
        f"{nearest['values'][source]:.4g} here",
    ):
        assert part in row.note
    assert ("here, which is within 15 %" in row.note) == reading_claims.reached(source, nearest["values"][source])


def test_a_row_that_was_not_searched_stays_off() -> None:
    result = reading_search.stored()
    measured = Measured(50.0, note="Ours.")
    assert with_evidence(claim_of("knn.accuracy"), measured, result) is measured
    assert with_evidence(claim_of("small.all"), Measured(29.0), result).verdict is None  # no miss


def test_a_search_with_another_state_of_the_program_is_no_evidence() -> None:
    result, claim = reading_search.stored(), claim_of("small.all")
    row = judge(claim, with_evidence(claim, Measured(result["ours"]["values"]["small.all"] + 1, note="Ours."), result))
    assert row.verdict == "off"
    assert "is no evidence here: run it again" in row.details


def altered(**parts: Any) -> str:
    return json.dumps({**reading_search.stored(), **parts})


def test_a_wrong_result_is_refused() -> None:
    with pytest.raises(BadInput, match="other walks, timings or claims"):
        reading_search.checked(altered(grid="0" * 16), "readings.json")
    best = [{**one, "reached": one["reached"] + 1} for one in reading_search.stored()["best"]]
    for text in (altered(best=best), altered(ours={"reached": 1, "values": {"a": 1.0}})):
        with pytest.raises(BadInput, match="has been altered"):
            reading_search.checked(text, "readings.json")
    for text in ("", "{}", "[]", altered(ours=None)):
        with pytest.raises(BadInput, match="is no result of"):
            reading_search.checked(text, "readings.json")


def test_a_digest_is_of_walks_and_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = reading_search.grid_digest(SPACE)
    assert reading_search.grid_digest(reversed(SPACE)) == digest
    assert reading_search.grid_digest(SPACE[1:]) != digest
    monkeypatch.setattr(reading_search, "stated", lambda claim: 1.0)
    assert reading_search.grid_digest(SPACE) != digest


def test_a_candidate_that_is_in_both_lists_counts_once() -> None:
    result = reading_search.stored()
    found = candidates(result)
    assert len({described(one) for one in found}) == len(found)
    assert candidates({**result, "best": found, "nearest_defensible": found}) == found
