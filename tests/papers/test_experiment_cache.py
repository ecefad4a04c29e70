"""The experiment cache: exact round trip, tied to the program that wrote it, harmless when damaged or not writable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import files
from trainyard.papers import bench, experiment_cache
from trainyard.papers.experiment_cache import ExperimentCache
from trainyard.papers.ledger import Measured

numbers = st.floats(allow_nan=False, allow_infinity=False)
values = numbers | st.lists(numbers, min_size=1, max_size=4).map(tuple)
measurements = st.one_of(
    st.builds(Measured, values, note=st.text(max_size=20), printed=st.none() | values),
    st.builds(Measured, values, verdict=st.just("contradicted"), proof=st.text(min_size=1, max_size=20)),
)


def same(a: Measured, b: Measured | None) -> bool:
    def listed(value: object) -> object:
        return list(value) if isinstance(value, tuple | list) else value

    return b is not None and all(listed(getattr(a, name)) == listed(getattr(b, name)) for name in Measured.__slots__)


@given(st.dictionaries(st.text(min_size=1, max_size=8), measurements, max_size=4))
def test_stored_measurements_are_read_back_equal(tmp_path_factory: pytest.TempPathFactory, found: dict[str, Measured]) -> None:
    path = tmp_path_factory.mktemp("cache") / "n.json"
    cache = ExperimentCache(path)
    for claim, measured in found.items():
        cache.store(claim, measured)
    cache.save()
    again = ExperimentCache(path)
    assert all(same(measured, again.measured(claim)) for claim, measured in found.items())
    assert again.measured("unknown claim") is None


class Counted:
    """An experiment that says how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> Measured:
        self.runs += 1
        return Measured(2.0, "a note")


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()
    monkeypatch.setattr(bench, "experiments", lambda paper: {"igo.small.all": found} if paper == "igo" else {})
    return found


def test_an_experiment_runs_once_and_again_with_anew(experiment: Counted) -> None:
    assert experiment_cache.rows("igo") is None
    first = experiment_cache.walk("igo")
    assert experiment.runs == 1
    assert experiment_cache.walk("igo") == first
    assert experiment_cache.rows("igo") == first
    assert experiment.runs == 1
    assert experiment_cache.walk("igo", anew=True) == first
    assert experiment.runs == 2


def test_a_changed_program_runs_the_experiment_again(experiment: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment_cache.walk("igo")
    monkeypatch.setattr(experiment_cache, "source_digest", lambda: "0" * 64)
    experiment_cache.walk("igo")
    assert experiment.runs == 2


def test_a_ledger_kept_from_an_older_version_says_so(experiment: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    assert experiment_cache.outdated("igo") == ""  # none is kept
    with monkeypatch.context() as older:
        older.setattr(experiment_cache, "source_digest", lambda: "0" * 64)
        older.setattr(experiment_cache, "VERSION", "0.0.9")
        experiment_cache.walk("igo")
        assert experiment_cache.outdated("igo") == ""  # it is of that version
        path = ExperimentCache().path
    said = experiment_cache.outdated("igo")
    assert "kept from version 0.0.9 has 1 of these 1 measurements" in said
    assert "is not used" in said
    assert "version 0.0.9" in experiment_cache.outdated("igo.small.all")
    assert experiment_cache.outdated("sigma") == ""
    content = json.loads(path.read_text())
    del content["version"]  # as they were written before files had one
    path.write_text(json.dumps(content))
    assert "kept from an earlier version" in experiment_cache.outdated()
    experiment_cache.walk("igo")
    assert experiment.runs == 2
    assert experiment_cache.outdated("igo") == ""


def test_a_failed_experiment_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def broken() -> Measured:
        runs.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(bench, "experiments", lambda paper: {"igo.small.all": broken})
    experiment_cache.walk("igo")
    experiment_cache.walk("igo")
    assert len(runs) == 2


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"measured": 3, "figures": {}}', '{"measured": {"igo.small.all": {"a": 1}}, "figures": {}}']
)
def test_a_damaged_file_counts_as_empty(experiment: Counted, content: str) -> None:
    path = ExperimentCache().path
    path.parent.mkdir(parents=True)
    path.write_text(content)
    experiment_cache.walk("igo")
    assert experiment.runs == 1
    assert json.loads(path.read_text())["measured"]["igo.small.all"]["value"] == 2.0


def test_a_folder_that_cannot_be_written_costs_only_time(
    experiment: Counted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "file"))
    experiment_cache.walk("igo")
    experiment_cache.walk("igo")
    assert experiment.runs == 2


def test_only_the_newest_files_are_left(tmp_path: Path) -> None:
    for number in range(experiment_cache.MOST_FILES + 3):
        cache = ExperimentCache(tmp_path / f"{number}.json")
        cache.store("a", Measured(1.0))
        cache.save()
    assert len(list(tmp_path.glob("*.json"))) == experiment_cache.MOST_FILES


def test_the_source_digest_changes_with_every_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "__file__", str(tmp_path / "files.py"))
    digests = set()
    for content in ("a", "b"):
        (tmp_path / "claims.toml").write_text(content)
        digests.add(files.source_digest.__wrapped__())
    (tmp_path / "new.py").write_text("")
    digests.add(files.source_digest.__wrapped__())
    assert len(digests) == 3
    (tmp_path / "kernels" / "__pycache__").mkdir(parents=True)
    for left_by_a_run in ("new.pyc", "loop.nbi", "loop.lock"):
        (tmp_path / "kernels" / "__pycache__" / left_by_a_run).write_text("compiled")
        digests.add(files.source_digest.__wrapped__())
    assert len(digests) == 3


def test_a_file_with_one_altered_number_counts_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    cache = ExperimentCache(path)
    cache.store("a", Measured(value=1.5))
    cache.store("b", Measured(value=(2.5, 3.5)))
    cache.save()
    text = path.read_text()
    assert ExperimentCache(path).measured("b") is not None
    for old, new in (("1.5", "1.6"), ("3.5", '"x"'), ("digest", "digits")):
        path.write_text(text.replace(old, new))
        assert ExperimentCache(path).measured("a") is None
        assert ExperimentCache(path).measured("b") is None
