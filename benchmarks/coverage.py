"""Which models of other people's libraries can be captured: about three hundred, each trained as its documentation does.

    python benchmarks/coverage.py                                        # all families, about half an hour on two cores
    python benchmarks/coverage.py --family timm --case resnet18          # one
    python benchmarks/coverage.py --page docs/coverage.md --json out/coverage.json

A case is examined in a worker process with limits of time and memory: captured by default and with `real=True`, its FLOPs beside
torch's counter on the same step, its parameters beside the model's, run on five machines; model, optimizer, configuration, random
numbers and environment compared before and after. The extra `coverage` has the libraries.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

if __name__ == "coverage":  # numba asks for the package of this name, which measures the coverage of tests
    raise ImportError("benchmarks/coverage.py is a script")

sys.path.insert(0, str(Path(__file__).parent))

from coverage_cases.case import FAMILIES, cases_of
from coverage_cases.examination import Record
from coverage_cases.report import line, page, summary
from coverage_cases.workers import examine_all


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="this family only (may be repeated)")
    parser.add_argument("--case", action="append", help="this case only (may be repeated)")
    parser.add_argument("--no-real", action="store_true", help="leave captures with real=True out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all records here")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page of the manual here")
    parser.add_argument(
        "--from-json", type=Path, nargs="+", metavar="FILE", help="report records written before instead of examining"
    )
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.from_json:
        records, seconds = _stored(options.from_json)
        runs = len(options.from_json)
    else:
        chosen = [case for family in options.family or FAMILIES for case in cases_of(family)]
        chosen = [case for case in chosen if not options.case or case.name in options.case]
        start, so_far = time.perf_counter(), []

        def on_record(record: Record) -> None:
            print(line(record), flush=True)
            so_far.append(record)
            if options.json:
                _write(options.json, so_far, time.perf_counter() - start)

        records = examine_all(chosen, jobs=options.jobs, real=not options.no_real, on_record=on_record)
        seconds, runs = time.perf_counter() - start, 1
    print(summary(records, seconds))
    if options.json:
        _write(options.json, records, seconds)
    if options.page:
        options.page.write_text(page(records, seconds, runs), encoding="utf-8")
    return 0 if records and all(record.default or record.real for record in records) else 1


def _stored(paths: list[Path]) -> tuple[list[Record], float]:
    """The records of several runs in the order of the cases, and what examining them took two workers."""
    found = {}
    for path in paths:
        for fields in json.loads(path.read_text(encoding="utf-8"))["records"]:
            found[fields["family"], fields["name"]] = Record(**fields)
    records = [found[key] for family in FAMILIES for case in cases_of(family) if (key := (case.family, case.name)) in found]
    return records, sum(sum(record.seconds.values()) for record in records) / 2


def _write(path: Path, records: list[Record], seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"seconds": seconds, "records": [asdict(record) for record in records]}
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
