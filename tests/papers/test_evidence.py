"""The verdicts `open` and `undefined` are refused without their evidence; changes after results name what got worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.papers import bench, evidence, illustrated, ledger, pages, tables
from trainyard.papers.changes import Change, check, moved
from trainyard.papers.evidence import Search, Undefined
from trainyard.papers.experiment_cache import ExperimentCache
from trainyard.papers.ledger import Claim, Measured, judge, stated

SMALL, LARGE = "igo.small.all", "igo.large.all"  # printed: 29.3 and 14.5
CLAIMS = {claim.id: claim for claim in ledger.claims()}


def search(**changes: Any) -> Search:
    given_ = {
        "varied": "tiles",
        "readings": 40,
        "best": 2,
        "nearest": "reuse in half the scratchpad",
        "numbers": {SMALL: 21.6, LARGE: 14.0},
    }
    return Search(**{**given_, **changes})  # fmt: skip


def undefined(**changes: Any) -> Undefined:
    given_ = {"missing": "the reference", "looked_in": ("Sec. VI-B",), "readings": {"one unit": (0.9, 0.8), "32 units": (0.5, 0.4)}}
    return Undefined(**{**given_, **changes})


def test_an_open_claim_says_how_many_readings_the_best_count_and_the_nearest() -> None:
    row = judge(CLAIMS[SMALL], Measured(10.2, "ours.", verdict="open", evidence=search()))
    assert row.verdict == "open"
    assert row.ratio == pytest.approx(10.2 / 29.3)
    for text in ("40 readings", "against 2 claims", "best has 2", "defensible one 1 (reuse in half", "gives 21.6 here"):
        assert text in row.note
    assert row.details.startswith("ours.")
    assert row.as_dict()["evidence"]["numbers"] == {SMALL: 21.6, LARGE: 14.0}


@pytest.mark.parametrize(("ours", "verdict"), [(29.3, "met"), (29.3 * 1.15, "near"), (29.3 * 1.151, "open")])
def test_open_stands_in_place_of_off_alone(ours: float, verdict: str) -> None:
    assert judge(CLAIMS[SMALL], Measured(ours, verdict="open", evidence=search())).verdict == verdict


def test_an_undefined_claim_has_no_ratio_and_lists_its_readings() -> None:
    claim = Claim(id="a.b", value=(0.8, 0.9), unit="x", use="table", where="")
    row = judge(claim, Measured((0.9, 0.8), verdict="undefined", evidence=undefined()))
    assert (row.verdict, row.ratio) == ("undefined", None)
    for text in ("does not define the reference (looked for in Sec. VI-B)", "one unit 0.9 / 0.8, 32 units 0.5 / 0.4"):
        assert text in row.note


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"verdict": "open"}, "open claim needs its evidence"),
        ({"verdict": "open", "evidence": undefined()}, "open claim needs its evidence"),
        ({"verdict": "undefined"}, "undefined claim needs its evidence"),
        ({"verdict": "undefined", "evidence": search()}, "undefined claim needs its evidence"),
        ({"evidence": search()}, "a Search is evidence of open or undefined"),
        ({"verdict": "contradicted", "proof": "p", "evidence": search()}, "not of contradicted"),
    ],
)
def test_a_verdict_without_its_evidence_is_refused(changes: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Measured(1.0, **changes)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: search(readings=1), "at least two"),
        (lambda: search(numbers={}), "numbers of its nearest"),
        (lambda: search(best=3), "best count 3 of 2"),
        (lambda: search(best=-1), "best count -1 of 2"),
        (lambda: search(nearest=" "), "needs `nearest`"),
        (lambda: search(varied=""), "needs `varied`"),
        (lambda: undefined(missing=""), "needs `missing`"),
        (lambda: undefined(looked_in=()), "needs `looked_in`"),
        (lambda: undefined(readings={"one": 0.9}), "at least two readings"),
        (lambda: undefined(readings={"one": 0.9, "two": 0.9}), "at least two readings"),
    ],
)
def test_empty_evidence_is_refused(make: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        make()


def test_a_search_against_other_claims_is_no_evidence() -> None:
    with pytest.raises(BadInput, match="not held against it"):
        judge(CLAIMS["igo.small.interleaving"], Measured(9.0, verdict="open", evidence=search()))
    with pytest.raises(BadInput, match="nearest reading has 1 claims within 15 %, the best of all 0"):
        judge(CLAIMS[SMALL], Measured(9.0, verdict="open", evidence=search(best=0)))
    with pytest.raises(UnknownName, match=r"did you mean 'igo\.small\.all'"):
        judge(CLAIMS[SMALL], Measured(9.0, verdict="open", evidence=search(numbers={SMALL: 1.0, "igo.smal.all": 1.0})))


figures = st.floats(0.01, 100) | st.lists(st.floats(0.01, 100), min_size=1, max_size=3).map(tuple)
searches = st.builds(
    search,
    readings=st.integers(2, 9),
    best=st.just(0),
    numbers=st.dictionaries(st.sampled_from((SMALL, LARGE)), figures, min_size=1),
)
pairs = st.dictionaries(st.text(min_size=1, max_size=4), figures, min_size=2, max_size=3).filter(lambda d: len(set(d.values())) > 1)


@given(searches | st.builds(undefined, readings=pairs))
def test_evidence_is_read_back_from_json_and_from_the_cache(
    tmp_path_factory: pytest.TempPathFactory, one: evidence.Evidence
) -> None:
    import json

    assert evidence.from_dict(json.loads(json.dumps(evidence.as_dict(one)))) == one
    path = tmp_path_factory.mktemp("cache") / "n.json"
    cache = ExperimentCache(path)
    cache.store("a", Measured(1.0, verdict="open" if isinstance(one, Search) else "undefined", evidence=one))
    cache.save()
    read = ExperimentCache(path).measured("a")
    assert read is not None
    assert read.evidence == one


def test_pages_and_tables_know_every_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        judge(CLAIMS[SMALL], Measured(10.2, verdict="open", evidence=search())),
        judge(CLAIMS[LARGE], Measured(9.0, verdict="undefined", evidence=undefined(readings={"a": 1.0, "b": 2.0}))),
    ]
    assert ledger.counts(rows) == {"open": 1, "undefined": 1}
    for verdict in ledger.VERDICTS:
        assert f"{verdict}: " in pages.LEGEND
        assert verdict in tables.COLOURS
        assert f".{verdict.replace(' ', '-')}" in pages.STYLE
    assert {"off", "open", "undefined"} < set(illustrated.EXPLAINED)
    tables.show_rows(rows)
    assert "40 readings" in capsys.readouterr().out
    pages.write_markdown(rows, tmp_path / "m.md")
    assert "| open |" in (tmp_path / "m.md").read_text()
    script = Path(ledger.__file__).parents[1] / "web" / "static" / "papers.js"
    assert all(f"{verdict}: " in script.read_text() or f'"{verdict}": ' in script.read_text() for verdict in ledger.VERDICTS)


def test_rows_are_chosen_by_verdict() -> None:
    rows = [judge(CLAIMS[SMALL], Measured(value)) for value in (29.3, 10.0)]
    assert [row.verdict for row in ledger.with_verdicts(rows, "off, open")] == ["off"]
    with pytest.raises(UnknownName, match="did you mean 'open'"):
        ledger.with_verdicts(rows, "opne")


def change(**changes: Any) -> Change:
    given_ = {"what": "reuse", "was": "lru", "now": "window", "argument": "Sec. 5 says so", "before": {SMALL: 28.0, LARGE: 9.0}}
    return Change(**{**given_, **changes})


def test_a_change_lists_what_got_worse_first() -> None:
    rows = [judge(CLAIMS[LARGE], Measured(14.0)), judge(CLAIMS[SMALL], Measured(21.6))]
    listed = moved(change(before={LARGE: 9.0, SMALL: 28.0}), rows)
    assert [(one.row.id, one.farther, one.before, one.now) for one in listed] == [
        (SMALL, True, 28.0, 21.6), (LARGE, False, 9.0, 14.0),
    ]  # fmt: skip


def test_a_change_of_printed_inputs_moves_the_second_column() -> None:
    rows = [judge(CLAIMS[SMALL], Measured(29.0, printed=21.6)), judge(CLAIMS[LARGE], Measured(14.0))]
    (one,) = moved(change(before={SMALL: 28.0, LARGE: 9.0}, column="printed"), rows)  # of the other nothing is printed
    assert (one.row.id, one.farther, one.now) == (SMALL, True, 21.6)


def test_a_bound_that_holds_is_not_missed() -> None:
    claim = Claim(id="a.b", value=10.0, unit="%", use="table", where="", bound="upper")
    (one,) = moved(change(before={"a.b": 9.9}), [judge(claim, Measured(1.0))])
    assert not one.farther


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"before": {}}, "what got worse"),
        ({"argument": ""}, "needs `argument`"),
        ({"was": ""}, "needs `was`"),
        ({"now": "lru"}, "nothing changed"),
    ],
)
def test_a_change_without_its_reason_or_its_cost_is_refused(changes: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        change(**changes)
    assert change(before={}, worse="nothing").worse == "nothing"


def test_a_change_names_claims_that_exist() -> None:
    check([change()], ledger.claims())
    with pytest.raises(UnknownName, match=r"did you mean 'igo\.small\.all'"):
        check([change(before={"igo.smal.all": 1.0})], ledger.claims())
    with pytest.raises(BadInput, match="has 1 figures, 2 were measured"):
        check([change(before={SMALL: (1.0, 2.0)})], ledger.claims())
    assert stated("igo", "small.all") == 29.3


@pytest.mark.parametrize("paper", ledger.papers())
def test_the_changes_of_every_paper_are_checked(paper: str) -> None:
    assert all(isinstance(one, Change) for one in bench.changes(paper))
