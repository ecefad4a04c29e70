"""Twenty results whose hashes are kept in the repository: whoever changes a result says so.

    python scripts/golden_results.py            # compares; exit 1 and the differing figures if a result has changed
    python scripts/golden_results.py --renew    # writes tests/golden/results.json anew

Renewing needs a line in CHANGELOG.md that begins with `- Golden results:` and says why, and that no earlier renewal has used.

A hash is of the result's JSON object without the release, floating-point numbers rounded to `DIGITS` digits: numpy adds in another
order on processors with other vector units, and sums differ in their last digits; everything else is exact.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "golden" / "results.json"
CHANGELOG = ROOT / "CHANGELOG.md"
MARK = "- Golden results:"
SHORTEST_REASON = 20
DIGITS = 9
HEADLINES = ("time_s", "energy_j", "cycles")
HOW = (
    f"If that is meant: write a new line that begins with '{MARK}' into CHANGELOG.md and says why, then run "
    "`python scripts/golden_results.py --renew`."
)


class Case(NamedTuple):
    """A step on a machine."""

    workload: str
    machine: str
    options: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.workload} on {self.machine}" + (f", {options}" if options else "")


SPARSE = {"masks": "sparsity(A=0.6,G=0.5,W=0.3,seed=1)"}
# fmt: off
CASES = (
    Case("linear", "npu"),                        Case("linear", "npu(order=interleaved)"),
    Case("linear", "npu-small"),                  Case("bert-tiny", "npu(order=cost)"),
    Case("bert-tiny", "tpu", {"batch": 16}),      Case("ncf", "spatial"),
    Case("bert-tiny", "v100"),                    Case("resnet18", "a100", {"batch": 32}),
    Case("bert-tiny", "h200"),                    Case("linear", "tensordash", SPARSE),
    Case("bert-tiny", "tensordash", SPARSE),      Case("linear", "sigma", SPARSE),
    Case("bert-tiny", "sigma"),                   Case("ncf", "scnn", SPARSE),
    Case("ncf", "outerspace", SPARSE),            Case("bert-tiny", "dc-dla", {"batch": 8}),
    Case("bert-tiny", "hc-dla", {"batch": 8}),    Case("bert-tiny", "mcdla-b", {"batch": 8}),
    Case("resnet18", "npu", {"batch": 4}),        Case("linear", "mcdla-b(device=npu(array=tensordash,order=interleaved))"),
)
# fmt: on


def rounded(value: Any) -> Any:
    """A JSON value with its floating-point numbers rounded.

    >>> rounded({"time_s": 0.1 + 0.2, "cycles": 3})
    {'time_s': '0.3', 'cycles': 3}
    """
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def measured(case: Case) -> dict[str, Any]:
    """The hash of a case's result, and its headline figures for the message."""
    import trainyard as ty

    result = ty.run(case.workload, on=case.machine, **case.options).as_dict()
    content = json.dumps(rounded({name: value for name, value in result.items() if name != "version"}), sort_keys=True)
    headlines = {name: rounded(result[name]) for name in HEADLINES if result.get(name) is not None}
    return {"sha256": hashlib.sha256(content.encode()).hexdigest(), **headlines}


def stored() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"reasons": [], "results": {}}
    return content


def difference(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> str:
    """One line about a result that has changed; empty if it has not."""
    if old is None:
        return f"{name} is new"
    if old["sha256"] == new["sha256"]:
        return ""
    figures = [f"{key} {old.get(key)} -> {new.get(key)}" for key in HEADLINES if old.get(key) != new.get(key)]
    return f"{name} has changed: {', '.join(figures) or 'not in time, energy or cycles but elsewhere in its JSON object'}"


def differences(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    old = stored()["results"]
    yield from filter(None, (difference(name, old.get(name), new) for name, new in results.items()))
    yield from (f"{name} is no longer a case" for name in old if name not in results)


def reasons(changelog: str) -> list[str]:
    """The lines that explain renewals, with what they go on to say."""
    entries = ["- " + " ".join(entry.split()) for entry in changelog.replace("\n\n", "\n- \n").split("\n- ")]
    return [entry for entry in entries if entry.startswith(MARK)]


def new_reason(changelog: str, used: list[str]) -> str:
    """The line that explains this renewal, or an error that says what is missing."""
    unused = [line for line in reasons(changelog) if line not in used]
    if not unused or len(unused[0].removeprefix(MARK).strip()) < SHORTEST_REASON:
        raise SystemExit(f"refused: no new line in CHANGELOG.md begins with '{MARK}' and says why results have changed")
    return unused[0]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renew", action="store_true", help="write the hashes anew")
    renew = parser.parse_args(arguments).renew
    results = {case.name: measured(case) for case in CASES}
    lines = list(differences(results))
    for line in lines:
        print(line)
    if not lines:
        print(f"{len(results)} results as they were")
    elif not renew:
        sys.exit(HOW)
    else:
        used = stored()["reasons"]
        reason = new_reason(CHANGELOG.read_text(encoding="utf-8"), used)
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(json.dumps({"digits": DIGITS, "reasons": [*used, reason], "results": results}, indent=1) + "\n")
        print(f"wrote {FILE.relative_to(ROOT)}: {reason}")


if __name__ == "__main__":
    main()
