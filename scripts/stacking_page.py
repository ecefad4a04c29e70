"""Writes docs/stacking.md and its pictures: what each of the five ideas adds alone, together, and under other settings."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paper_pages import Section, page_of, table
from stacking import IDEAS, NETWORKS, Sensitivity, Setting, Study, sensitivity, study
from stacking.ideas import ORDER, TAU, Combination, device, machine
from stacking.study import SKIPPING

from trainyard.ir import Masks
from trainyard.machines.presets.igo import NPU as IGO
from trainyard.machines.presets.mcdla import DEVICE as MCDLA
from trainyard.machines.presets.tensordash import TENSORDASH
from trainyard.papers.processes import workers
from trainyard.papers.tensordash.models import recorded
from trainyard.report.colours import PHASES, SPARE
from trainyard.runs import run
from trainyard.units import show

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "stacking.md"
# fmt: off
NAMES = {"systolic": "dense systolic", "tensordash": "TensorDash", "sigma": "SIGMA"}
IDEA = {"array": "array", "order": "IGO", "memory": "MC-DLA", "exchange": "DIRECT"}
COLOURS = {"array": PHASES["forward"], "order": PHASES["grad_input"], "memory": PHASES["copy"], "exchange": PHASES["grad_weight"]}
SETTINGS: Mapping[str, Setting] = {
    "DRAM x 2":              Setting(dram=2.0),
    "DRAM x 6":              Setting(dram=6.0),
    "links and PCIe x 2":    Setting(links=2.0),
    "paging as needed":      Setting(overlay="as_needed"),
}
# fmt: on
HEAD = """# Stacking: what the five ideas add, alone and together

The project's own study: no paper claims any of this, so there are no verdicts here. `python scripts/stacking_page.py` measures
every number below and writes this page.

    trainyard compare resnet50 --batch 512 --on "dc-dla(device=npu),mcdla-b(device=npu(array=tensordash,order=interleaved))"
    trainyard run resnet50 --batch 512 --on examples/stacked.toml

With `scripts/` on PYTHONPATH:

```python
import stacking

study = stacking.study("resnet50")  # all 24 machines
study.effects("tensordash").terms  # of every set of ideas, in logarithms; they add up to the whole
study.effects("tensordash").shapley  # each one's fair share
```
"""


def main() -> None:
    studies = {one.network.name: one for one in _all(study, [(name,) for name in NETWORKS])}
    asked = [(name, setting, studies[name].better_array) for name in NETWORKS for setting in _settings(name).values()]
    found = _all(sensitivity, asked)
    weighed = {(name, _named(setting)): one for (name, setting, _), one in zip(asked, found, strict=True)}
    (DOCS / "stacking-effects.svg").write_text(effects_drawn(list(studies.values())), encoding="utf-8")
    (DOCS / "stacking-bandwidth.svg").write_text(bandwidth_drawn(studies, weighed), encoding="utf-8")
    PAGE.write_text(page_of(HEAD, sections(studies, weighed)), encoding="utf-8")


def _all(work: object, asked: Sequence[tuple[object, ...]]) -> list:  # type: ignore[type-arg]  # of what `work` returns
    """On all cores where there are several."""
    pool = workers()
    assert callable(work)
    if pool is None:
        return [work(*one) for one in asked]
    return [one.result() for one in [pool.submit(work, *each) for each in asked]]


def _settings(name: str) -> Mapping[str, Setting]:
    """A recommender's memory is its tables, which are not paged: less than all of it holds nothing."""
    return {told: one for told, one in SETTINGS.items() if one.overlay == "all" or NETWORKS[name].family != "recommender"}


def _named(setting: Setting) -> str:
    return next(name for name, one in SETTINGS.items() if one == setting)


Weighed = Mapping[tuple[str, str], Sensitivity]


def sections(studies: Mapping[str, Study], weighed: Weighed) -> Iterator[Section]:
    yield Section("What is compared", _compared(), _places())
    yield Section("What comes out", findings(studies, weighed), _effects_table(studies))
    yield Section("", "![What each idea adds alone, and what sets of them add beyond that](stacking-effects.svg)", "")
    yield Section("Terms", _terms_told(), _terms_table(studies))
    yield Section("Energy", _energy_told(studies), _energy_table(studies))
    yield Section("How far the array's part is its zeros", _fabric_told(studies), _fabric_table(studies))
    yield Section("Other settings", _settings_told(weighed), _settings_table(studies, weighed))
    yield Section("", "![What an idea gives with all others there, against the DRAM's bandwidth](stacking-bandwidth.svg)", "")
    yield Section(
        "All machines", "Of one optimizer step, eight devices. Exposed time by class: an instant belongs to compute first.", ""
    )
    for name, one in studies.items():
        yield Section("", f"{name}, batch {one.network.batch:,} of all devices:", _machines_table(one))
    yield Section("Shares of zeros against masks", _masks_told(), _masks_table())
    yield Section("What this rests on", _limits(studies), "")


def _compared() -> str:
    plain = device("systolic", False)
    node = machine(Combination())
    return (
        "Four places in a machine, each with an idea and without it. The device is IGO's large NPU "
        f"({plain.peak_macs_per_cycle:,} MACs at {show(plain.clock_hz, 'Hz')}, {show(plain.scratchpad_bytes, 'B', binary=True)}, "
        f"{show(plain.dram_bytes_per_s, 'B/s')}, fp32, {plain.technology_nm:g} nm); eight of them in MC-DLA's node ({node.links} "
        f"links of {show(node.link_bytes_per_s, 'B/s')}, PCIe gen3 to the host). All else is equal, and a check refuses machines "
        "that differ (`require_equal`). TensorDash and SIGMA are two arrays for one place: they exclude each other, so each is "
        "reported by itself, and `all` has the better of them. All feature maps are paged (MC-DLA's own stress: `overlay=all`, "
        "64 images or sentences a device); what fits if only the excess is paged is among the other settings."
    )


def _places() -> str:
    rows = [
        ("array", "dense systolic 128 x 128", "TensorDash, 256 tiles of 4 x 4 x 4; or SIGMA, 128 Flex-DPEs of 128"),
        ("order (IGO)", "dX, then dW of a layer", f"`order={ORDER}`: the fused order that is fastest for the layer, or none"),
        ("memory (MC-DLA)", "DC-DLA: maps go to the host over PCIe", "MC-DLA(B): maps go to memory-nodes in the rings"),
        (
            "exchange (DIRECT)",
            "gradients of all devices in every step",
            f"a model each, averaged after {TAU + 1} steps (tau = {TAU})",
        ),
    ]
    return table(("place", "without", "with"), rows)


def findings(studies: Mapping[str, Study], weighed: Weighed) -> str:
    lines = []
    for name, one in studies.items():
        effects = one.effects(one.better_array)
        alone, last = ({idea: part(idea) for idea in IDEAS} for part in (effects.alone, effects.with_all))
        first = max(IDEAS, key=lambda idea: alone[idea])
        base, best = one.base, one.best(one.better_array)
        exposed = {kind: f"{100 * time / base.time_s:.0f} %" for kind, time in base.classes.items() if kind != "idle"}
        dram = best.bounds.get("dram", 0.0) / best.time_s
        lines.append(
            f"- **{name}** ({one.network.family}): {effects.speedup:.2f}x together, by {NAMES[one.better_array]}. Alone the "
            f"ideas give {', '.join(f'{IDEA[idea]} {alone[idea]:.3f}x' for idea in IDEAS)}: multiplied, "
            f"{effects.speedup / effects.interaction:.2f}x; together they give {effects.interaction:.3f} times that. With all "
            f"others there they are worth {', '.join(f'{IDEA[idea]} {last[idea]:.3f}x' for idea in IDEAS)}. Without any, "
            f"{exposed.get('copy', '0 %')} of the step is exposed copies and {exposed.get('synchronisation', '0 %')} exposed "
            f"exchanges, so {IDEA[first]} comes first; with all of them {100 * dram:.0f} % of the time waits for DRAM."
        )
    grown = []
    for name, one in studies.items():
        more = weighed[name, "DRAM x 6"]
        here, there = one.effects(more.array).with_all("array"), more.with_all["array"]
        zeros = one.fabric(more.array, alone=False)[1]
        grown.append(f"{name} {here:.2f}x ({zeros:.2f}x of it by zeros) and {there:.2f}x ({more.zeros:.2f}x by zeros)")
    lines.append(
        "- **Amdahl, both ways.** As long as copies are exposed, a faster array or order only makes the device wait longer: "
        "their terms alone are near nothing, and their terms with MC-DLA are positive. Once nothing is exposed, the step is "
        f"bound by DRAM at the papers' own ratios ({_ratios()}), and skipping zeros has little left to skip: what the better "
        f"array gives with all others there, at this DRAM and at six times its bandwidth (MC-DLA's 900 GB/s): {'; '.join(grown)}. "
        "What is not by zeros is by the fabric, which wastes fewer cycles on these shapes than the systolic array does."
    )
    lines.append(
        "- **The exchange** is another algorithm: samples per second compare, accuracy is not claimed to be equal "
        "([direct.md](direct.md) shows what averaging every 32 steps did to it). Rings of 150 GB/s hide gradients behind the "
        "backward pass of a CNN or "
        "a transformer; a recommender, with tables to exchange and little to compute, is where it pays."
    )
    return "\n".join(lines)


def _ratios() -> str:
    """Of the papers' devices."""
    found = {"IGO": IGO, "MC-DLA": MCDLA, "TensorDash": TENSORDASH}
    each = (f"{name} {1e3 * one.peaks.dram_bytes_per_s / one.peaks.macs_per_s:.1f}" for name, one in found.items())
    return f"bytes for a thousand MACs: {', '.join(each)}"


def _effects_table(studies: Mapping[str, Study]) -> str:
    rows = []
    for name, one in studies.items():
        for array in SKIPPING:
            effects = one.effects(array)
            each = [f"{effects.alone(i):.3f} / {effects.with_all(i):.3f} / {math.exp(effects.shapley[i]):.3f}" for i in IDEAS]
            rows.append((name, NAMES[array], *each, f"{effects.interaction:.3f}", f"{effects.speedup:.3f}"))
    head = ("network", "array", *(f"{IDEA[idea]}: alone / with all / Shapley" for idea in IDEAS), "beyond the product", "all")
    return table(head, rows)


def _terms_told() -> str:
    return (
        "Natural logarithms of the speedup over the machine without any idea. The term of a set is what its members add "
        "together beyond what smaller sets of them add; all fifteen add up to the last row, exactly. A positive term: one "
        "uncovers what another gains. A negative one: both would gain the same time."
    )


def _terms_table(studies: Mapping[str, Study]) -> str:
    sets = list(next(iter(studies.values())).effects(SKIPPING[0]).terms)
    rows = []
    for some in sets:
        cells = [f"{one.effects(array).terms[some]:+.4f}" for one in studies.values() for array in SKIPPING]
        rows.append((_set(some), *cells))
    rows.append(("all", *(f"{one.effects(array).total:+.4f}" for one in studies.values() for array in SKIPPING)))
    return table(("set", *(f"{name}, {NAMES[array]}" for name in studies for array in SKIPPING)), rows)


def _set(some: Iterable[str]) -> str:
    return " x ".join(IDEA[idea] for idea in IDEAS if idea in some)


def _energy_told(studies: Mapping[str, Study]) -> str:
    worst = []
    for name, one in studies.items():
        each = {array: one.energy_effects(array) for array in SKIPPING}
        drawn = {array: min(found.alone("array"), found.with_all("array")) for array, found in each.items()}
        array = min(drawn, key=drawn.__getitem__)
        worst.append(f"{name} {drawn[array]:.2f} ({NAMES[array]})")
    return (
        "Joules of the machine without any idea over those with it: above 1 is less energy. Energy is events times tables, so "
        "no term hides behind another as time does. The arrays are priced by their own papers' rows (schedulers, staging, "
        "networks, local memories), the systolic array by its multipliers and the scratchpad: at these few zeros they draw "
        f"more, at worst {', '.join(worst)}. MC-DLA's rings pass memory-nodes, which doubles what an exchange draws; its "
        "copies cross fewer wires than PCIe's."
    )


def _energy_table(studies: Mapping[str, Study]) -> str:
    rows = []
    for name, one in studies.items():
        for array in SKIPPING:
            effects = one.energy_effects(array)
            each = [f"{effects.alone(i):.3f} / {effects.with_all(i):.3f}" for i in IDEAS]
            rows.append((name, NAMES[array], *each, f"{effects.speedup:.3f}", f"{one.base.energy_j:.3g} J"))
    return table(("network", "array", *(f"{IDEA[idea]}: alone / with all" for idea in IDEAS), "all", "without any"), rows)


def _fabric_told(studies: Mapping[str, Study]) -> str:
    return (
        "The dense array is systolic, the other two are not: part of what they give is the shape of their fabric, which a dense "
        "product feels too. The same machines without zeros tell it apart: first the fabric, then the zeros on top. "
        "TensorDash's own baseline is that fabric, dense; the zeros' column is its idea. SIGMA's fabric is its idea as much as "
        "its zeros are."
    )


def _fabric_table(studies: Mapping[str, Study]) -> str:
    rows = []
    for name, one in studies.items():
        for array in SKIPPING:
            parts = [one.fabric(array, alone=alone, what=what) for what in ("time_s", "energy_j") for alone in (True, False)]
            rows.append((name, NAMES[array], *(f"{fabric:.3f} x {zeros:.3f}" for fabric, zeros in parts)))
    head = ("network", "array", "time, alone: fabric x zeros", "time, with all", "energy, alone", "energy, with all")
    return table(head, rows)


def _settings_told(weighed: Weighed) -> str:
    lost = min(factor for (_, setting), one in weighed.items() if "needed" in setting for factor in one.alone.values())
    return (
        "Each idea alone / with all others there, by the array that was better above. `DRAM x 6` is MC-DLA's 900 GB/s. With "
        "paging as needed, a device's memory holds what half of its samples need, and each machine keeps, sends or makes again "
        "what is cheapest for it: DC-DLA then makes maps again instead of sending them over PCIe, and MC-DLA is worth what that "
        f"costs. The choice is a heuristic: another exchange or array may make it choose worse, at worst {lost:.3f}x where nothing "
        "but a gain should be; terms of that size between machines that page as needed are its noise. "
        "`ncf` is not among them: its memory is its tables."
    )


def _settings_table(studies: Mapping[str, Study], weighed: Weighed) -> str:
    rows = []
    for name, one in studies.items():
        effects = one.effects(one.better_array)
        each = [f"{effects.alone(idea):.3f} / {effects.with_all(idea):.3f}" for idea in IDEAS]
        rows.append((name, NAMES[one.better_array], "as above", *each, f"{effects.speedup:.3f}"))
        for setting in _settings(name):
            found = weighed[name, setting]
            each = [f"{found.alone[idea]:.3f} / {found.with_all[idea]:.3f}" for idea in IDEAS]
            rows.append((name, NAMES[found.array], setting, *each, f"{found.total:.3f}"))
    return table(("network", "array", "setting", *(IDEA[idea] for idea in IDEAS), "all"), rows)


def _machines_table(one: Study) -> str:
    rows = []
    for row in one.rows:
        chosen = row.chosen
        marks = ["x" if getattr(chosen, idea) else "" for idea in ("order", "memory", "exchange")]
        parts = [f"{1e3 * row.classes.get(kind, 0.0):.2f}" for kind in ("compute", "synchronisation", "copy")]
        times = f"{1e3 * row.time_s:.2f}", f"{one.base.time_s / row.time_s:.3f}"
        rows.append((NAMES[chosen.array], *marks, *times, f"{row.samples_per_s:,.0f}", *parts, f"{row.energy_j:.3g}"))
    head = ("array", "IGO", "MC-DLA", "DIRECT", "ms", "speedup", "samples/s", "compute", "exchange", "copy", "J")
    return table(head, rows)


def _masks_told() -> str:
    return (
        "Where masks of whole steps are shipped, for a few samples: cycles of the array on all products, DRAM no limit, by these "
        "masks and by the shares of zeros that the study uses. BERT's padded words stand behind each other, the shares strew "
        "them: rows of a tile of TensorDash then wait for each other more than they have to, and the study understates it. "
        "NCF's 256 samples give a tile of TensorDash one or two groups of rows, of which the fullest counts; it is a few hundred "
        "cycles in either case."
    )


def _masks_table() -> str:
    rows = []
    for name, recording in (("bert-base", "BERT"), ("ncf", "NCF")):
        subject = recorded(recording)
        for array in SKIPPING:
            bare = replace(device(array, False), dram_bytes_per_s=1e13)
            every: list[Masks | None] = [None, subject.masks, NETWORKS[name].zeros()]
            dense, exact, told = (run(subject.step, bare, masks=zeros).array_cycles or 0 for zeros in every)
            cells = (f"{dense:,}", f"{exact:,}", f"{told:,}", f"{100 * (told / exact - 1):+.1f} %")
            rows.append((name, f"{subject.step.batch}", NAMES[array], *cells))
    return table(("network", "samples", "array", "no zeros", "masks", "shares", "off by"), rows)


def _limits(studies: Mapping[str, Study]) -> str:
    return (
        "- Zeros are the shares recorded of every layer at the last epoch of real training on stand-in data "
        "([samples.md](samples.md)), not "
        "masks: arrays take them by expected counts. Nothing is pruned; weights are dense, and a BatchNorm leaves ResNet-50's "
        "gradients dense. BERT's zeros are padded words.\n"
        "- Both orders keep tiles (`reuse=lru`): a fused order needs that, and what it is worth is not the order's. IGO is "
        "worth more against a fixed tall tile ([igo.md](igo.md)).\n"
        f"- `ncf` has {studies['ncf'].network.batch // 8:,} samples a device (assumed); its table gradients are dense, as torch "
        "makes them.\n"
        "- A device is a cluster of DIRECT's here: no tokens, no AGAU. On a ring clusters of several devices have no ring of "
        "their own. An exchange of models begins with the update and hides nothing; the next step waits for it."
    )


# pictures
ROW, LEFT, RIGHT = 19, 190, 330
LEAST = 5e-4


def effects_drawn(studies: Sequence[Study]) -> str:
    """Bars of every term, network below network; those that are nothing are left out."""
    parts, y = [], 58.0
    for one in studies:
        effects = one.effects(one.better_array)
        terms = {some: term for some, term in effects.terms.items() if len(some) == 1 or abs(term) >= LEAST}
        low, high = min(0.0, *terms.values()), max(terms.values())
        scale = RIGHT / (high - low)
        title = f"{one.network.name}: {effects.speedup:.2f}x with {NAMES[one.better_array]}, IGO, MC-DLA and DIRECT"
        parts.append(_text(12, y, title, "bold"))
        y += 10
        for some, term in terms.items():
            y += ROW
            colour = COLOURS[next(iter(some))] if len(some) == 1 else SPARE[0]
            left = LEFT + (min(term, 0.0) - low) * scale
            parts.append(_text(LEFT - 8, y, _set(some), anchor="end"))
            parts.append(
                f'<rect x="{left:.1f}" y="{y - 12:.1f}" width="{max(1.0, abs(term) * scale):.1f}" height="14" fill="{colour}"/>'
            )
            parts.append(_text(LEFT + (max(term, 0.0) - low) * scale + 6, y, f"{term:+.4f} ({math.exp(term):.3f}x)"))
        y += 40
    told = "Logarithms of speedups: each idea alone (colours), sets of ideas beyond that (purple)"
    return _svg(parts, 700, y, told)


def bandwidth_drawn(studies: Mapping[str, Study], weighed: Weighed) -> str:
    """For each network, what each idea gives with all others there at 1, 2 and 6 times the DRAM's bandwidth."""
    parts, y = [], 58.0
    for name, one in studies.items():
        effects = one.effects(one.better_array)
        series = {
            idea: [effects.with_all(idea), *(weighed[name, f"DRAM x {times}"].with_all[idea] for times in (2, 6))] for idea in IDEAS
        }
        top = max(math.log(value) for values in series.values() for value in values)
        low = min(0.0, *(math.log(value) for values in series.values() for value in values))
        parts.append(_text(12, y, f"{name}, with {NAMES[one.better_array]}", "bold"))
        y += 12
        for idea, values in series.items():
            for times, value in zip((1, 2, 6), values, strict=True):
                y += ROW
                width = math.log(value) / (top - low) * RIGHT
                start = LEFT - low / (top - low) * RIGHT
                parts.append(_text(LEFT - 8, y, f"{IDEA[idea]}, DRAM x {times}", anchor="end"))
                shown = f'x="{min(start, start + width):.1f}" y="{y - 12:.1f}" width="{max(1.0, abs(width)):.1f}" height="14"'
                parts.append(f'<rect {shown} fill="{COLOURS[idea]}" opacity="{(0.45, 0.7, 1.0)[(1, 2, 6).index(times)]}"/>')
                parts.append(_text(max(start, start + width) + 6, y, f"{value:.3f}x"))
            y += 6
        y += 36
    return _svg(parts, 700, y, "What an idea gives with all others there, at 1, 2 and 6 times the DRAM's bandwidth")


def _text(x: float, y: float, said: str, weight: str = "normal", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" text-anchor="{anchor}">{html.escape(said)}</text>'


def _svg(parts: Sequence[str], width: float, height: float, told: str) -> str:
    shown = f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{html.escape(told)}"'
    whole = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {shown}>',
        "<style>text { font-size: 13px; font-family: system-ui, sans-serif; fill: #1c2430 }</style>",
        f"<title>{html.escape(told)}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
        _text(12, 26, told),
    ]
    return "\n".join((*whole, *parts, "</svg>", ""))


if __name__ == "__main__":
    main()
