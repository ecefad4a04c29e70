"""The ledger that comes with the package: complete, the one of the manual, and no part of what decides whether a cache is used."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from trainyard import files
from trainyard.errors import BadInput
from trainyard.papers import bench, shipped
from trainyard.papers.experiment_cache import ExperimentCache
from trainyard.papers.ledger import Measured
from trainyard.papers.pages import COLUMNS, cells, markdown_table

MANUAL = Path(__file__).parents[2] / "docs" / "reproduction.md"


def test_every_experiment_is_in_it_and_has_a_verdict() -> None:
    for paper in bench.PAPERS:
        rows = {row.id: row for row in shipped.rows(paper)}
        assert all(rows[claim].ours is not None for claim in bench.experiments(paper))
        assert not [row.id for row in rows.values() if row.verdict == "not yet" and row.id in bench.experiments(paper)]
        declared = bench.headline(paper)
        assert declared is not None
        assert declared.figure in shipped.figures(paper)


def test_it_is_the_ledger_of_the_manual() -> None:
    lines = set(MANUAL.read_text(encoding="utf-8").splitlines())
    rows = [row for paper in bench.PAPERS for row in shipped.rows(paper)]
    missing = [row.id for row in rows if markdown_table(COLUMNS, [cells(row)]).splitlines()[-1] not in lines]
    assert missing == [], "docs/reproduction.md and the shipped ledger differ: scripts/ship_ledger.py writes it anew"


def test_it_is_no_part_of_the_source_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "__file__", str(tmp_path / "files.py"))
    before = files.source_digest.__wrapped__()
    (tmp_path / files.SHIPPED_LEDGER).write_bytes(b"another")
    assert files.source_digest.__wrapped__() == before


def test_only_a_whole_ledger_is_shipped(tmp_path: Path) -> None:
    cache = ExperimentCache(tmp_path / "cache.json")
    cache.store("igo.small.all", Measured(1.0))
    with pytest.raises(BadInput, match="are not measured"):
        shipped.packed(cache)
    for paper in bench.PAPERS:
        for claim in bench.experiments(paper):
            cache.store(claim, Measured(1.0))
    first, second = shipped.packed(cache), shipped.packed(cache)
    assert first == second
    assert json.loads(gzip.decompress(first))["source"] == files.source_digest()
