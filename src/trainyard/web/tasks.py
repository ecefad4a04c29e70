"""The tasks of workers: runs, what-ifs, ledgers, machines, uploads. Each returns plain values.

`on_progress` is called as parts of a task are done. Paths come from the server alone: text of a visitor has passed `guard.py`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.errors import BadInput, TrainyardError, UnknownName
from trainyard.progress import ProgressCallback, with_message
from trainyard.web import guard, views
from trainyard.web.frames import json_bytes

if TYPE_CHECKING:
    from trainyard.ir import Step
    from trainyard.papers.ledger import Row

Uploads = Mapping[str, Mapping[str, str]]
"""id -> its `path`, `kind` and `name`."""
CACHED_STEPS = 8
WARM = ("linear", "npu")
FORWARD = ", the forward pass alone"


class Case:
    """A request of a visitor, made into a step, a machine and masks."""

    def __init__(
        self,
        *,
        workload: str,
        machine: str,
        batch: int | None = None,
        settings: Mapping[str, Any] | None = None,
        masks: str | None = None,
        at: int | None = None,
        parallel: str | None = None,
        inference: bool = False,
        metric: str = "time_s",
        only: str | None = None,
        pairs: int = 0,
        range: bool = False,
        uploads: Uploads | None = None,
    ) -> None:
        with _by_name(uploads or {}):
            self.step, self.digest = _step(workload, batch, uploads or {}, inference=inference)
            self.machine = built(machine, settings or {}, uploads or {})
            self.masks = _masks(masks, at, self.step, uploads or {})
        changes = ", ".join(f"{path}={value}" for path, value in (settings or {}).items())
        shown = guard.UPLOAD.sub(lambda match: (uploads or {})[match.group()]["name"], machine)
        self.shown = f"{shown} with {changes}" if changes else shown
        self.parallel, self.inference, self.range = parallel, inference, range
        self.metric, self.pairs, self.kinds = metric, pairs, _kinds(only)

    @property
    def title(self) -> str:
        return f"{self.step.name}, batch {self.step.batch}, on {self.shown}{FORWARD if self.inference else ''}"

    def key(self, task: str) -> str:
        """A hash of all that the answer depends on, and of the name that it is shown under."""
        from trainyard.machines import describe

        zeros = getattr(self.masks, "digest", None)
        content = [task, VERSION, self.digest, describe(self.machine), zeros, self.parallel, self.shown]
        content.append([self.metric, self.kinds, self.pairs] if task == "whatif" else [self.range])
        return hashlib.sha256(json_bytes(content)).hexdigest()


@contextmanager
def _by_name(uploads: Uploads) -> Iterator[None]:
    """Errors name an upload as its owner does, not by a path of the server."""
    try:
        yield
    except TrainyardError as error:
        line = str(error)
        for upload in uploads.values():
            line = line.replace(upload["path"], upload["name"]).replace(os.path.basename(upload["path"]), upload["name"])
        raise BadInput(line) from error.__cause__


def _step(workload: str, batch: int | None, uploads: Uploads, *, inference: bool = False) -> tuple[Step, str]:
    from trainyard.workloads import zoo

    name, _, sizes = workload.partition(":")
    if name in uploads:
        upload = uploads[name]
        if upload["kind"] not in ("step", "topology", "onnx"):
            raise BadInput(f"{upload['name']} is not a workload but {upload['kind']}")
        if sizes and upload["kind"] != "onnx":
            raise BadInput(f"{upload['name']}: sizes such as {sizes[:40]} are for the open dimensions of an ONNX model")
        text = f"{upload['path']}:{sizes}" if sizes else upload["path"]
        return _loaded(text, upload["name"].partition(".")[0], batch, inference)
    if workload not in zoo.names():
        raise UnknownName("workload", workload[:100], zoo.names())
    return _loaded(workload, "", batch, inference)


@lru_cache(maxsize=CACHED_STEPS)
def _loaded(text: str, name: str, batch: int | None, inference: bool) -> tuple[Step, str]:
    from trainyard.ir import Phase
    from trainyard.workloads.named import load

    step = load(text, batch)
    step = step.only(Phase.FORWARD) if inference else step
    step = replace(step, name=name) if name else step
    return step, step.digest


def built(text: str, settings: Mapping[str, Any], uploads: Uploads) -> Any:
    """The machine of a text that may name uploads but no other file."""
    from trainyard.machines import machine, with_overrides

    guard.require_plain(text, "machine")
    guard.require_plain(settings, "settings")
    for name in guard.UPLOAD.findall(text):
        if uploads[name]["kind"] != "machine":
            raise BadInput(f"{uploads[name]['name']} is not a machine but {uploads[name]['kind']}")
    base = machine(guard.UPLOAD.sub(lambda match: os.path.basename(uploads[match.group()]["path"]), text))  # a worker's folder
    return with_overrides(base, dict(settings))


def _masks(text: str | None, at: int | None, step: Step, uploads: Uploads) -> Any:
    if at is not None and text not in uploads:
        raise BadInput(f"at {at} chooses a training step of recorded masks: upload a masks file")
    if text is None:
        return None
    if text in uploads:
        from trainyard.masks.recorded import Masks

        if uploads[text]["kind"] != "masks":
            raise BadInput(f"{uploads[text]['name']} holds no masks but is {uploads[text]['kind']}")
        masks = Masks.open(uploads[text]["path"])
        return masks if at is None else masks.at(at)
    if not text.startswith("sparsity(") or len(text) > guard.LONGEST:
        raise BadInput("masks: upload a masks file and give its id, or write sparsity(A=0.6,G=0.5,seed=1)")
    from trainyard.masks.generated import parse

    return parse(text, step)


def warm(on_progress: ProgressCallback) -> None:
    """Everything that a first run would have to import and compile."""
    case = Case(workload=WARM[0], machine=WARM[1])
    views.result(_run_case(case), "")


def look(on_progress: ProgressCallback) -> None:
    """What the query worker imports before it is first asked."""
    views.machine(WARM[1], built(WARM[1], {}, {}))


def prepare(on_progress: ProgressCallback, job: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The key and the title of a job; what is wrong with it is said before it waits."""
    if "paper" in arguments:
        from trainyard.papers import ledger

        paper = arguments["paper"]
        if paper not in ledger.papers():
            raise UnknownName("paper", paper[:100], ledger.papers())
        options = () if job == "paper" else (arguments.get("only"), arguments.get("pairs"))
        return {"key": _paper_key(paper, *options), "title": f"what if: {paper}" if options else f"the ledger of {paper}"}
    case = Case(**arguments)
    return {"key": case.key(job), "title": f"what if: {case.title}" if job == "whatif" else case.title}


def _paper_key(paper: str, *options: Any) -> str:
    return hashlib.sha256(json_bytes(["paper", VERSION, paper, options])).hexdigest()


def _run_case(case: Case) -> Any:
    from trainyard import runs

    result = runs.run(case.step, case.machine, masks=case.masks, parallel=case.parallel)
    return replace(result, machine=case.shown)


def run(on_progress: ProgressCallback, **arguments: Any) -> dict[str, Any]:
    on_progress(0, 3, "reading the workload")
    case = Case(**arguments)
    on_progress(1, 3, f"running on {case.shown}")
    with _by_name(arguments.get("uploads") or {}):
        result = _run_case(case)
        if case.range:
            result = result.ranged(with_message(on_progress, f"alternatives of {case.shown}"))
    on_progress(2, 3, "drawing")
    shown = views.result(result, case.key("run"))
    return {**shown, "title": shown["title"] + FORWARD} if case.inference else shown


def whatif(on_progress: ProgressCallback, **arguments: Any) -> dict[str, Any]:
    from trainyard import sensitivity

    case = Case(**arguments)
    on_progress(0, 1, f"running on {case.shown}")
    options = {"masks": case.masks, "parallel": case.parallel}
    with _by_name(arguments.get("uploads") or {}):
        study = sensitivity.machine_study(case.step, case.machine, metric=case.metric, kinds=case.kinds, **options)
    result = sensitivity.run_study(
        replace(study, title=case.title), with_message(on_progress, f"changes of {case.shown}"), paired=case.pairs
    )
    return {**views.sensitivity(result), "key": case.key("whatif")}


def _kinds(only: str | None) -> tuple[Any, ...]:
    from trainyard.sensitivity import KINDS

    return KINDS if only is None else (only,)


def paper_whatif(on_progress: ProgressCallback, paper: str, only: str | None = None, pairs: int = 0) -> dict[str, Any]:
    """A paper's assumptions by its own measure, or on the case that stands for it."""
    from trainyard import sensitivity
    from trainyard.papers import bench

    on_progress(0, 1, f"running {paper}")
    study = bench.sensitivity_study(paper, _kinds(only))
    if study is None:
        from trainyard.masks import named as named_masks

        workload, machine, masks = bench.case(paper)
        step, _ = _step(workload, None, {})
        study = sensitivity.machine_study(step, machine, kinds=_kinds(only), masks=named_masks.load(masks, step))
    result = sensitivity.run_study(study, with_message(on_progress, f"changes of {paper}"), paired=pairs)
    return {**views.sensitivity(result), "key": _paper_key(paper, only, pairs)}


def paper(on_progress: ProgressCallback, paper: str) -> dict[str, Any]:
    """All rows and figures of a paper's ledger; experiments and figures that are not cached run now."""
    from trainyard.papers import experiment_cache

    rows = experiment_cache.walk(paper, on_progress=on_progress)
    on_progress(len(rows), len(rows), "drawing the figures")
    drawn = experiment_cache.figures(paper, with_message(on_progress, "drawing the figures"), run=True) or {}
    return {"kind": "paper", "name": paper, "title": views.paper_title(paper), "complete": True, **views.ledger_of(rows, drawn)}


def machine(on_progress: ProgressCallback, text: str, settings: Mapping[str, Any], uploads: Uploads) -> dict[str, Any]:
    with _by_name(uploads):
        return views.machine(text, built(text, settings, uploads))


def papers(on_progress: ProgressCallback) -> list[dict[str, Any]]:
    from trainyard.papers import ledger

    summaries = []
    for name in ledger.papers():
        rows, complete = _rows(name)
        counts = ledger.counts(rows)
        summaries.append(
            {"name": name, "title": views.paper_title(name), "claims": len(rows), "verdicts": counts, "complete": complete}
        )
    return summaries


def ledger_of(on_progress: ProgressCallback, paper: str) -> dict[str, Any]:
    """The ledger of a paper that this program has computed on this computer, else the one that came with it."""
    from trainyard.papers import experiment_cache, shipped

    rows, complete = _rows(paper)
    drawn = (experiment_cache.figures(paper) if complete else None) or shipped.figures(paper)
    return {
        "kind": "paper",
        "name": paper,
        "title": views.paper_title(paper),
        "complete": complete,
        "shipped": "" if complete else shipped.sentence(),
        "outdated": "" if complete else experiment_cache.outdated(paper),
        "key": _paper_key(paper),
        **views.ledger_of(rows, drawn),
    }


def _rows(paper: str) -> tuple[list[Row], bool]:
    """The rows of a ledger, and whether this state of the program has computed them on this computer."""
    from trainyard.papers import experiment_cache, shipped

    rows = experiment_cache.rows(paper)
    return (shipped.rows(paper), False) if rows is None else (rows, True)


def upload(on_progress: ProgressCallback, **arguments: Any) -> dict[str, Any]:
    from trainyard.web.recognition import recognised

    return recognised(**arguments)


def stores(on_progress: ProgressCallback, **arguments: Any) -> list[dict[str, Any]]:
    from trainyard.web.stores import listed

    return listed(**arguments)


def store(on_progress: ProgressCallback, **arguments: Any) -> dict[str, Any]:
    from trainyard.web.stores import opened

    return opened(**arguments)


# fmt: off
TASKS: Mapping[str, Callable[..., Any]] = {
    "warm": warm, "look": look, "prepare": prepare, "machine": machine, "papers": papers, "ledger": ledger_of, "upload": upload,
    "stores": stores, "store": store, "run": run, "whatif": whatif, "paper": paper, "paper_whatif": paper_whatif,
}
# fmt: on
