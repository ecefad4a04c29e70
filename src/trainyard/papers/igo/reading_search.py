"""A joint search over readings of the paper: `trainyard reproduce igo --search`.

Every walk is measured once for all timings and appended to a journal; an interrupted search goes on where the journal ends. The
readings that reach the most claims of one core are then held against the claims that the search has not seen. What is found goes
into a small file that the ledger reads (`samples/igo/readings.json`), and onto a page.

A reading is called defensible, by rules that were written down before the search had run, if writes take time (Sec. 4.3 counts
intermediate results that leave the scratchpad), convolutions are written out by im2col (Sec. 6.1), and the baseline's own traffic
has the two mean shares of dY that Fig. 5 prints, within 15 %.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from trainyard import __version__
from trainyard.errors import BadInput
from trainyard.files import write_text
from trainyard.papers.igo import reading_claims
from trainyard.papers.igo.baselines import stated
from trainyard.papers.igo.reading_claims import FIG_5, HELD_OUT, SEARCHED, Values, contradicted, count, deviation, reached
from trainyard.papers.igo.reading_page import described, page
from trainyard.papers.igo.readings import DEFAULT_TIMING, DEFAULT_WALK, TIMINGS, TileWalk, Timing, walks
from trainyard.papers.processes import workers
from trainyard.progress import ProgressCallback, no_progress

COMMAND = "trainyard reproduce igo --search"
JOURNAL, RESULT, PAGE = "journal.jsonl", "readings.json", "igo_readings.md"
CANDIDATES = 8
"""Readings of each kind, all and defensible ones, that the held-out claims are measured for."""
DIGITS = 5


class Reading(NamedTuple):
    """A walk with a timing, and what it gives for the claims."""

    walk: TileWalk
    timing: Timing
    values: Mapping[str, float]

    @property
    def defensible(self) -> bool:
        return not contradicted(self.timing.writes, self.walk.im2col, self.values)

    @property
    def rank(self) -> tuple[int, float]:
        """More claims first, then nearer ones."""
        return -count(self.values), deviation(self.values)

    def as_dict(self) -> dict[str, Any]:
        return {
            "walk": asdict(self.walk), "timing": asdict(self.timing), "reached": count(self.values),
            "defensible": self.defensible,
            "values": {claim: round(value, 4) for claim, value in self.values.items()},
        }  # fmt: skip


def _plain(values: Values, claims: Sequence[str]) -> list[list[float]]:
    """A row for each timing."""
    return [[round(float(values[claim][row]), DIGITS) for claim in claims] for row in range(len(TIMINGS))]


def _measured(tile_walk: TileWalk) -> list[list[float]]:
    return _plain(reading_claims.searched(tile_walk), SEARCHED)


def _measured_held_out(tile_walk: TileWalk) -> list[list[float]]:
    return _plain(reading_claims.held_out(tile_walk), HELD_OUT)


@dataclass(slots=True)
class Journal:
    """Measured walks on disk, one a line; the first line says what was searched, by which version."""

    path: Path
    lines: dict[str, list[list[float]]]

    @classmethod
    def open(cls, path: Path) -> Journal:
        """What an earlier search left; a line that was being written when it was interrupted is dropped."""
        head = _head()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(head) + "\n")
            return cls(path, {})
        lines: dict[str, list[list[float]]] = {}
        whole = []
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines()):
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if number == 0 and line != head:
                raise BadInput(
                    f"{path} is of another search or version ({line.get('version')}, this is {__version__}): "
                    "move it away, or give another folder"
                )
            if number > 0:
                lines[line["key"]] = line["values"]
            whole.append(text)
        if not whole:
            raise BadInput(f"{path} is no journal of a search: move it away, or give another folder")
        write_text(path, "\n".join(whole) + "\n")
        return cls(path, lines)

    def measure(
        self,
        keys: Mapping[str, TileWalk],
        function: Callable[[TileWalk], list[list[float]]],
        on_progress: ProgressCallback,
        pool: ProcessPoolExecutor | None,
    ) -> None:
        """Measures the walks that are missing."""
        missing = [key for key in keys if key not in self.lines]
        if len(missing) < len(keys):
            self._check(keys, function)
        with self.path.open("a", encoding="utf-8") as file:
            for done, (key, values) in enumerate(_results(missing, keys, function, pool), len(keys) - len(missing)):
                on_progress(done, len(keys), str(keys[key]))
                self.lines[key] = values
                _append(file, key, values)
        on_progress(len(keys), len(keys))

    def _check(self, keys: Mapping[str, TileWalk], function: Callable[[TileWalk], list[list[float]]]) -> None:
        """One walk is measured again: the journal must be this program's."""
        known = next(key for key in keys if key in self.lines)
        if function(keys[known]) != self.lines[known]:
            raise BadInput(f"{self.path} has other numbers for {keys[known]}: move it away, or give another folder")


def _append(file: TextIO, key: str, values: list[list[float]]) -> None:
    file.write(json.dumps({"key": key, "values": values}) + "\n")
    file.flush()


def _results(
    missing: Sequence[str],
    keys: Mapping[str, TileWalk],
    function: Callable[[TileWalk], list[list[float]]],
    pool: ProcessPoolExecutor | None,
) -> Iterator[tuple[str, list[list[float]]]]:
    """Results as they come, a few walks submitted ahead."""
    if pool is None:
        yield from ((key, function(keys[key])) for key in missing)
        return
    left = iter(missing)
    running = {pool.submit(function, keys[key]): key for key in islice(left, 16)}
    while running:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            key = running.pop(future)
            for following in islice(left, 1):
                running[pool.submit(function, keys[following])] = following
            yield key, future.result()


def _head() -> dict[str, Any]:
    return {"search": "igo", "version": __version__, "timings": len(TIMINGS), "claims": [*SEARCHED, *HELD_OUT]}


def _readings(journal: Journal, keys: Mapping[str, TileWalk]) -> list[Reading]:
    return [
        Reading(tile_walk, timing, dict(zip(SEARCHED, values, strict=True)))
        for key, tile_walk in keys.items()
        for timing, values in zip(TIMINGS, journal.lines[key], strict=True)
    ]


def _with_held_out(journal: Journal, readings: Sequence[Reading]) -> list[Reading]:
    """The same with all claims, the best first."""
    complete = []
    for one in readings:
        values = journal.lines[_held_out_key(one.walk)][TIMINGS.index(one.timing)]
        complete.append(one._replace(values={**one.values, **dict(zip(HELD_OUT, values, strict=True))}))
    return sorted(complete, key=lambda one: one.rank)


def _held_out_key(tile_walk: TileWalk) -> str:
    return f"held out: {tile_walk}"


def search(
    folder: Path,
    on_progress: ProgressCallback = no_progress,
    *,
    space: Sequence[TileWalk] | None = None,
    pool: ProcessPoolExecutor | None = None,
) -> dict[str, Any]:
    """Searches, or goes on, and writes the result and its page into `folder`. `space` are the walks, all by default."""
    searched = walks() if space is None else space
    keys = {str(one): one for one in dict.fromkeys((DEFAULT_WALK, *searched))}
    journal = Journal.open(folder / JOURNAL)
    journal.measure(keys, _measured, on_progress, pool)
    readings = _readings(journal, keys)
    ours = next(one for one in readings if (one.walk, one.timing) == (DEFAULT_WALK, DEFAULT_TIMING))
    best = sorted(readings, key=lambda one: one.rank)[:CANDIDATES]
    defensible = sorted((one for one in readings if one.defensible), key=lambda one: one.rank)
    candidates = [*best, *defensible[:CANDIDATES], ours]
    held_out = {_held_out_key(one.walk): one.walk for one in candidates}
    journal.measure(held_out, _measured_held_out, on_progress, pool)
    result: dict[str, Any] = {
        "written_by": f"{COMMAND}, trainyard {__version__}",
        "grid": grid_digest(keys.values()),
        "walks": len(keys),
        "timings": len(TIMINGS),
        "readings": len(readings),
        "claims": {"searched": list(SEARCHED), "held_out": list(HELD_OUT)},
        "defensible": len(defensible),
        "reached_by": {claim: sum(reached(claim, one.values[claim]) for one in readings) for claim in SEARCHED},
        "together": _together(readings),
        "counts": _histogram([count(one.values) for one in readings]),
        "counts_defensible": _histogram([count(one.values) for one in defensible]),
        "best": [one.as_dict() for one in _with_held_out(journal, best)],
        "nearest_defensible": [one.as_dict() for one in _with_held_out(journal, defensible[:CANDIDATES])],
        "ours": _with_held_out(journal, [ours])[0].as_dict(),
    }
    text = _text(result)
    result = json.loads(text)
    write_text(folder / RESULT, text)
    write_text(folder / PAGE, page(result))
    return result


def run(folder: Path, on_progress: ProgressCallback = no_progress) -> str:
    """The search over all walks, on all cores; a sentence on what it found."""
    result = search(folder, on_progress, pool=workers())
    best, every = result["best"][0], len(SEARCHED) + len(HELD_OUT)
    return f"{result['readings']:,} readings, the best reaches {best['reached']} of {every} claims: {described(best)}"


def _histogram(counts: Sequence[int]) -> dict[str, int]:
    return {str(number): counts.count(number) for number in sorted(set(counts), reverse=True)}


TOGETHER: Mapping[str, tuple[str, ...]] = {
    "interleaving on both NPUs": ("small.interleaving", "large.interleaving"),
    "interleaving and all three steps on both NPUs": ("small.interleaving", "large.interleaving", "small.all", "large.all"),
    "all three steps on both NPUs": ("small.all", "large.all"),
    "Fig. 6 on both NPUs": ("potential.small", "potential.large"),
    "Fig. 5, both means": FIG_5,
    "Figs. 5 and 12, all three steps": (*FIG_5, "small.all", "large.all"),
    "Algorithm 1 and the ideal order on the small NPU": ("small.rearrangement", "small.rearrangement_ideal"),
    "Algorithm 1 and the ideal order on the large NPU": ("large.rearrangement", "large.rearrangement_ideal"),
}


def _together(readings: Sequence[Reading]) -> dict[str, int]:
    """How many readings reach several claims at once."""
    return {
        name: sum(all(reached(claim, one.values[claim]) for claim in claims) for one in readings)
        for name, claims in TOGETHER.items()
    }


def _text(result: Mapping[str, Any]) -> str:
    """As JSON, with a line for each part and for each reading."""
    parts = []
    for name, part in result.items():
        listed = isinstance(part, list) and ",\n ".join(map(json.dumps, part))
        parts.append(f"{json.dumps(name)}: " + (f"[\n {listed}\n]" if listed else json.dumps(part)))
    return "{\n" + ",\n".join(parts) + "\n}\n"


# the result that ships with the package


def grid_digest(space: Iterable[TileWalk]) -> str:
    """Of what is searched: the walks, the timings, and the claims with the figures that the paper prints."""
    printed = [[claim, stated(claim)] for claim in (*SEARCHED, *HELD_OUT)]
    content = [sorted(map(str, space)), [*map(str, TIMINGS)], printed]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def checked(text: str, name: str) -> Mapping[str, Any]:
    """A result as it was written, if it is of a search over all walks and these claims; any other is refused."""
    try:
        result = json.loads(text)
        grid, by, readings = result["grid"], result["written_by"], [*result["best"], *result["nearest_defensible"], result["ours"]]
        whole = all(one["values"].keys() == {*SEARCHED, *HELD_OUT} for one in readings)
        counted = whole and all(one["reached"] == count(one["values"]) for one in readings)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{name} is no result of `{COMMAND}`: {type(error).__name__} {error}") from None
    if grid != grid_digest({DEFAULT_WALK, *walks()}):
        raise BadInput(f"{name}, written by {by}, is of other walks, timings or claims than this program's: run `{COMMAND}` again")
    if not counted:
        raise BadInput(f"{name}, written by {by}, has been altered: its counts are not those of its numbers; run `{COMMAND}` again")
    found: Mapping[str, Any] = result
    return found


@cache
def stored() -> Mapping[str, Any]:
    """The result of the search that ships with the package."""
    file = resources.files("trainyard.papers").joinpath("samples", "igo", RESULT)
    if not file.is_file():
        raise BadInput(f"{RESULT} is missing from this installation: `{COMMAND}` writes it")
    return checked(file.read_text(encoding="utf-8"), RESULT)
