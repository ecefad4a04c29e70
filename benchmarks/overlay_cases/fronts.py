"""Time over peak memory of one network: every alternative, and the overlay with each one's peak as its budget, in turns.

A step is forward, backward and AdamW; times are medians of device time, memory is the peak of `torch.cuda.max_memory_allocated`. An
alternative and the overlays at its peak are measured alternately (`turns`), so that a clock that falls or a host that is slow for a
while meets all of them. The budget is the alternative's peak and 1 %.

`prepare` runs everything once, to compile it; then `rows` measures.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from overlay_gpu import GIB, say

from overlay_cases.alternatives import Alternative, alternatives, compiled_alone
from overlay_cases.networks import Network
from overlay_cases.others import network_of
from overlay_cases.turns import Repeats, Samples, Stopwatch, compared, take_turns

if TYPE_CHECKING:
    from trainyard.live.paging.regions.variants import CompilerName

TOLERANCE = 1.01
"""Of an alternative's peak, which the overlay may take."""
ROOMY = 1.3
"""A budget of so many times the plain peak: nothing needs to move."""
PAGED = {"llama-7b": 24.0}
"""GiB of networks that are also trained with AdamW's state in host memory and updates in backward."""


MAY_FAIL = ("selective checkpointing",)
"""Run first: a checkpoint that torch gives up in backward keeps its memory, which then belongs to the peaks of all others."""
ATTEMPTS = 240
"""How often, once a second, a step is tried while other processes hold the memory that it needs."""
REPEATS = {"llama-7b": Repeats(rounds=3, seconds=12.0)}


class Front:
    """One network, its alternatives and its overlays."""

    def __init__(
        self, spec: str, shares: Sequence[float], with_cpu: bool, device: str = "cuda", compiler: CompilerName = "inductor"
    ) -> None:
        import torch

        import trainyard as ty

        torch.manual_seed(0)
        torch._dynamo.config.recompile_limit = 64  # three shares, and code that several modules have in common
        self.spec, self.device, self.shares = spec, device, shares
        self.network = network_of(spec, device)
        self.repeats = REPEATS.get(spec, Repeats())
        self.watch = Stopwatch(device)
        self.compiler: CompilerName = compiler if device == "cuda" else "aot_eager"
        self.eager = ty.live.overlay(self.network.model, 1, unit="blocks")
        self.compiled = ty.live.overlay(self.network.model, 1, unit="blocks", compile=self.compiler) if shares else None
        compiled = compiled_alone(self.network) if compiler == "inductor_cpp" else self._compiled_by_overlay
        self.alternatives = alternatives(self.network, shares, with_cpu, compiled)
        self.document: dict[str, Any] = {"name": spec, "alternatives": [], "overlay": []}

    def prepare(self) -> None:
        """Compiles everything: a step of each variant of the overlay and of each share of the whole, without an optimizer."""
        begun = time.perf_counter()
        if self.compiled is not None:
            with self.compiled:
                self.compiled.precompile(self._try_step)
            for share in self.shares if self.compiler == "inductor_cpp" else ():
                with self.alternatives[f"torch.compile, budget {share}"]():
                    self._try_step()
        self.document["compiled_s"] = time.perf_counter() - begun
        say(f"{self.spec}: compiled in {self.document['compiled_s']:.0f} s, {_cached_graphs()}")

    def _compiled_by_overlay(self, share: float) -> Any:
        """The code that the overlay has compiled is the alternative's as well: nothing is compiled twice."""
        assert self.compiled is not None
        return self.compiled.whole_model(share)

    def _try_step(self) -> None:
        """A step, again and again while other processes hold the memory that it needs."""
        for attempt in range(ATTEMPTS):
            try:
                self.network.step()
                break
            except RuntimeError:  # libraries of kernels say in their own words that there is no memory
                if self.device != "cuda" or attempt == ATTEMPTS - 1:
                    raise
            self._empty_cache()  # here the failed step's tensors are gone: inside of `except` its frames still hold them
            time.sleep(1.0)
        self._empty_cache()

    def rows(self) -> Iterator[dict[str, Any]]:
        """The same document after every row."""
        self.network = self.network.with_optimizer()
        samples = {}
        for name in sorted(self.alternatives, key=lambda name: name not in MAY_FAIL):
            if (taken := self._first(name, self.alternatives[name])) is not None:
                samples[name] = taken
            yield self.document
        names = list(self.alternatives)
        samples = {name: samples[name] for name in names if name in samples}
        self.document["alternatives"].sort(key=lambda row: names.index(row["name"]))
        rows = {row["name"]: row for row in self.document["alternatives"]}
        expected = self._repeated_gradients()
        for taken in samples.values():  # what counts is measured in turns
            taken.turns, taken.host_ms = [], []
        gc.collect()
        gc.freeze()  # otherwise a collection in the middle of a step looks through all of the compiler's objects
        roomy = [("plain", ROOMY * samples["plain"].gib)]
        for name, gib in roomy + sorted(((n, TOLERANCE * s.gib) for n, s in samples.items()), key=lambda item: -item[1]):
            if name == "save_on_cpu":
                continue
            for row in self._group(name, gib, samples[name], expected, is_roomy=gib > TOLERANCE * samples[name].gib):
                self.document["overlay"].append(row)
                say(f"{self.spec}: overlay{', compiled' if row['compile'] else ''}, budget {gib:.2f} ({name}): {shown(row)}")
            rows[name] |= samples[name].row()
            say(f"{self.spec}: {name}: {shown(rows[name])}")
            yield self.document
        if "save_on_cpu" in samples:
            self.document["overlay"].append(row := self._by_tensors(TOLERANCE * samples["save_on_cpu"].gib))
            say(f"{self.spec}: overlay by tensors: {shown(row)}")
        if self.spec in PAGED and self.device == "cuda":
            self.document["paged"] = paged(self.network, PAGED[self.spec], self.watch)
            say(f"{self.spec}: AdamW paged: {self.document['paged']}")
        gc.unfreeze()
        self.document["complete"] = True
        yield self.document

    def _first(self, name: str, context: Alternative) -> Samples | None:
        samples, begun = Samples(), time.perf_counter()
        try:
            with context():
                self.network.step()
                first_s = time.perf_counter() - begun
                self.watch.time(self.network, samples, 2 if "cpu" in name else 1, 0)  # its peak; times are measured in turns
        except Exception as error:
            self.document["alternatives"].append({"name": name, "refused": repr(error)[:200]})
            say(f"{self.spec}: {name}: {error!r}"[:300])
            return None
        row = {"name": name, "first_s": first_s} | samples.row()
        say(f"{self.spec}: {name}: {shown(row)}")
        self.document["alternatives"].append(row)
        self._empty_cache()
        return samples

    def _empty_cache(self) -> None:
        import torch

        self.network.model.zero_grad(set_to_none=True)
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def _repeated_gradients(self) -> list[Any]:
        """Gradients of a plain step on the host, if a second step repeats their bits."""
        self.network.step()
        first = [parameter.grad.clone() for parameter in self.network.model.parameters() if parameter.grad is not None]
        repeats = self._has_gradients(first)
        self.document["plain_repeats_its_bits"] = repeats
        return [gradient.cpu() for gradient in first] if repeats else []

    def _has_gradients(self, expected: Sequence[Any]) -> bool:
        import torch

        self.network.step()
        gradients = (parameter.grad for parameter in self.network.model.parameters())
        actual = [gradient for gradient in gradients if gradient is not None]
        same = zip(actual, expected, strict=True)
        return len(actual) == len(expected) and all(torch.equal(one, other.to(one.device)) for one, other in same)

    def _group(
        self, name: str, gib: float, samples: Samples, expected: Sequence[Any], *, is_roomy: bool
    ) -> Iterator[dict[str, Any]]:
        """An alternative and the overlays at its peak, alternately; rows of the overlays."""
        candidates = []
        if "compile" not in name:
            candidates.append((self.eager, {"budget_gib": gib, "compile": False, "beside": name}))
        if self.compiled is not None and not is_roomy:
            candidates.append((self.compiled, {"budget_gib": gib, "compile": True, "beside": name, "compiler": self.compiler}))
        rows: list[tuple[Any, dict[str, Any], Samples]] = []
        for pages, row in candidates:
            if (settled := self._settle(pages, gib, row)) is not None:
                rows.append((pages, settled, Samples()))
            else:
                yield row
        theirs = Samples()
        ours = [(partial(_itself, pages), taken) for pages, _, taken in rows]
        take_turns(self.network, self.watch, self.repeats, [(self.alternatives[name], theirs), *ours])
        samples.add(theirs)
        for pages, row, taken in rows:
            if expected and not row["compile"]:
                with pages:
                    row["equal_bits"] = self._has_gradients(expected)
            ratio, error = compared(theirs, taken)
            yield row | taken.row() | {"times_as_fast": ratio, "error": error}

    def _settle(self, pages: Any, gib: float, row: dict[str, Any]) -> dict[str, Any] | None:
        """Trains until the plan for a budget is chosen; `row` with what is known of it. None, with the reason in `row`: refused."""
        import trainyard as ty

        begun = time.perf_counter()
        with warnings.catch_warnings(record=True) as notes, pages:
            warnings.simplefilter("always")
            pages.rebudget(gib * GIB)
            try:
                self.network.step()
                while not pages.is_settled:
                    self.network.step()
            except ty.TrainyardError as error:
                row["refused"] = str(error)
                return None
            texts = {str(note.message) for note in notes}
            row |= described(pages.plan) | {"whole_share": pages.whole_share, "replayed": pages.is_replayed, "equal_bits": None}
            row["rivals"] = {name: [1e3 * score.seconds, score.peak_bytes / GIB] for name, score in pages.rivals.items()}
            row["prepared_s"] = time.perf_counter() - begun
            row["warnings"] = [text for text in texts if "budget" in text or "compiled" in text]
        return row

    def _by_tensors(self, gib: float) -> dict[str, Any]:
        """The overlay that moves single tensors, at the peak of `save_on_cpu`, below which no checkpoint goes."""
        import trainyard as ty

        row: dict[str, Any] = {"budget_gib": gib, "compile": False, "beside": "save_on_cpu", "unit": "tensors"}
        samples = Samples()
        try:
            with ty.live.overlay(self.network.model, gib * GIB, unit="tensors") as pages:
                for _ in range(5):
                    self.network.step()
                self.watch.time(self.network, samples, 2, 1)
        except ty.TrainyardError as error:
            return row | {"refused": str(error)}
        return row | samples.row() | {"passes": dict(pages.passes)}


def _itself(pages: Any) -> Any:
    """A with-block that is entered again and again."""
    return pages


def _cached_graphs() -> str:
    from torch._dynamo.utils import counters

    hits, misses = (counters["inductor"][f"fxgraph_cache_{what}"] for what in ("hit", "miss"))
    return f"{hits} of {hits + misses} graphs from the cache"


def described(plan: Any) -> dict[str, Any]:
    """What a plan predicted and chose."""
    names = list(plan.variants.values())
    chain = next(iter(plan.chains.values()))
    return {
        "predicted_ms": 1e3 * plan.choice.time_s,
        "predicted_gib": plan.choice.peak_bytes / GIB,
        "tightened": plan.tightened,
        "variants": {name: names.count(name) for name in sorted(set(names))},
        "chain": [[cost.variant, cost.held_bytes / GIB, 1e3 * cost.seconds] for cost in chain],
    }


def shown(row: dict[str, Any]) -> str:
    if "refused" in row:
        return f"refused: {row['refused']}"
    text = (
        f"{row['ms']:7.1f} ms ({row['least_ms']:.1f} to {row['most_ms']:.1f}), {row['gib']:6.2f} GiB, host {row['host_ms']:6.1f} ms"
    )
    if "predicted_ms" in row:
        text += f" (predicted {row['predicted_ms']:.1f} ms, {row['predicted_gib']:.2f} GiB; {row['variants']})"
        text += f"; {row['times_as_fast']:.3f} +- {row['error']:.3f} times as fast"
        text += (
            f" prepared in {row['prepared_s']:.1f} s; whole {row['whole_share']}; {'replayed' if row['replayed'] else 'called'}; "
        )
        text += f"bits {row['equal_bits']}; {row['warnings'] or ''}"
    return text


def paged(network: Network, gib: float, watch: Stopwatch) -> dict[str, Any]:
    """Training within a budget that parameters and gradients alone exceed: the overlay, with AdamW paged and run in backward."""
    import torch

    import trainyard as ty

    network.optimizer.state.clear()
    network.optimizer.param_groups[0]["lr"] = 1e-5
    network.model.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    with torch.no_grad():
        first = float(network.loss())
    row: dict[str, Any] = {"budget_gib": gib, "first_loss": first}
    torch.cuda.reset_peak_memory_stats()
    pages = ty.live.overlay(network.model, int(gib * GIB))
    with ty.live.paged_optimizer(network.optimizer, in_backward=True), pages:
        network.step()
        while not pages.is_settled:
            network.step()
        row["peak_gib"] = torch.cuda.max_memory_allocated() / GIB
        samples = Samples()
        watch.time(network, samples, 3, 1, pages=pages)
        row |= samples.row() | described(pages.plan)
    with torch.no_grad():
        row["last_loss"] = float(network.loss())
    row["state_gib"] = sum(tensor.nbytes for state in network.optimizer.state.values() for tensor in state.values()) / GIB
    return row
