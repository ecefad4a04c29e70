"""Writes docs/parallelism_plans.md: pipelines, ZeRO, experts, number formats, 2:4 weights; every number in it is measured here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from number_formats import FORMATS, rounded

import trainyard as ty
from trainyard.mapping.parallel.zero import STAGES, model_states, sharded, states_of
from trainyard.mapping.pipeline.schedule import Pipeline

PAGE = Path(__file__).parents[1] / "docs" / "parallelism_plans.md"
MODEL, BATCH, NODE = "gpt2-small", 64, "mcdla-b(overlay=off"
MIXTURE = "mixtral-8x7b"
HEAD = f"""# Pipelines, ZeRO, experts, narrow numbers and 2:4 weights

Written by `make pages`; every number below is measured by `scripts/parallelism_page.py` (tables of a node: {MODEL}, batch {BATCH},
on the memory-centric node of MC-DLA with its feature maps kept on the devices).

"""
PIPELINE = """## Pipelines

    trainyard run gpt2-small --batch 64 --on 'mcdla-b(overlay=off)' --parallel pipeline
    trainyard run gpt2-small --batch 64 --on 'mcdla-b(overlay=off,parallel=pipeline,pipeline.stages=4,pipeline.schedule=gpipe)'

`pipeline` is a part of every node: `stages` (all devices, or fewer: the others hold replicas), `microbatches`, `schedule`
(`gpipe`, `1f1b`, `interleaved` with `chunks` groups of layers on each device).

- The step is cut between layers so that the costliest chunk, by the device's own time for it forward and back, is as cheap as any
  cut makes it (dynamic programming). A call of a layer is never cut; a block only where it is more than a fair share of the step.
- What crosses a cut is counted from the step's tensors: each that is made on one side and read on the other, skip connections too,
  which the chunks between hand on. Messages are flows over the node's wires, beside compute.
- Gradients add up over microbatches; the update comes after the last. Replicas sum theirs by a ring in each stage. A parameter that
  two chunks share is summed and handed over once.
- A device holds its layers' parameters and state, and the maps of as many microbatches as its schedule has on their way.
- With equal stages and free messages the time is (m + p - 1)(f + b), interleaved (m + (p - 1)/v)(f + b): a test runs it on the
  engine. `tests/oracles/pipeline_execution.py` computes the schedule with arrays: the weights are those of the whole batch.
- Not modelled: paging of feature maps (the node's `overlay`) inside a pipeline, and one that is out of step with its weights.

"""
ZERO = """## ZeRO

    trainyard run gpt2-small --batch 64 --on 'mcdla-b(overlay=off,zero=3,bucket=25 MB)'

`zero=1, 2, 3` on a data-parallel node keeps optimizer state, gradients, parameters in parts (S. Rajbhandari et al., SC 2020). Stage
3 gathers parameters `prefetch` uses ahead, frees them, and gathers again for backward what that reads (no biases, no tables
of embeddings). Parts are flat, the last one padded. Bytes are those of the captured step: parameters and gradients by their element
types, state as the optimizer reads it; there is no fp32 master copy unless the step has one. `tests/oracles/zero_execution.py` runs
n devices with their parts on arrays, with SGD, momentum and Adam: the weights are those of one device. The peak comes when
activations are many and gradients still few, so stage 2 lowers what stays, and hardly the peak.

"""
EXPERTS = f"""## Experts

    trainyard run {MIXTURE} --on 'mcdla-b(overlay=off)' --parallel expert
    trainyard run {MIXTURE} --on 'mcdla-b(overlay=off,parallel=expert,experts.ranks=4,experts.imbalance=1.5)'

A mixture of experts is captured with its grouped products (torch's `grouped_mm`): each row of a token is multiplied by the matrix
of its own expert. Which rows these are is known only at run time; a step divides them evenly, as far as whole numbers allow, and
says so in a note; its MACs are exact. An array or a GPU then costs E smaller products, forward, dX and dW.

`parallel=expert` spreads the experts over `experts.ranks` devices (as many as share them evenly, where none is given). `experts` is
a part of every node.

- Everything but the experts is data-parallel. A device has E / ranks experts, their gradients and their state; gradients of experts
  are summed over their replicas (devices / ranks), all others over all devices.
- Rows travel by all-to-all between the ranks: tokens to their experts and results back, and in backward the gradients of both. Each
  of the four carries tokens x experts for each token x width, (n - 1)/n of which leaves a device. The numbers of the experts, which
  travel with the rows, are not counted. What stands between two grouped products stays with the experts.
- On a graph without switches all parts go at once on shortest routes; switches and planes exchange pairwise; a cluster exchanges
  inside its nodes, then across. `tests/oracles/expert_execution.py` sends rows one by one: outputs, gradients and bytes are equal.
- `experts.imbalance`: rows of the busiest device over the mean; the others share the rest and wait for it. Time and memory are
  those of the busiest device, MACs, energy and bytes those of all. `experts.capacity_factor`: a device takes so many times the mean
  and drops the other rows (none: nothing is dropped). Both are assumptions: `whatif` says what they are worth.
- A loop over modules `experts.0`, `experts.1`, ... is taken as the grouped products that it amounts to.
- Not modelled: other forms of experts (slices of one parameter in a loop, a matrix gathered for each row: refused), padding of rows
  to a fixed capacity, exchanges cut into parts that overlap with compute, and ZeRO or a pipeline with them.

{MIXTURE}, batch 8 (32,768 tokens), eight devices without paging:

"""
NUMBERS = """## Narrow numbers

    trainyard run bert-base --on 'npu(precision=fp8_e4m3,rates.fp8=2)'
    trainyard run bert-base --batch 64 --on 'h200(precision=fp8)'

`precision` is one type, or one for each role of a tensor (in Python and in TOML:
`precision = { parameter = "fp8_e4m3", gradient = "fp8_e5m2", state = "fp32" }`). It changes bytes everywhere and the energy of a
multiply-accumulate (`hardware/tables/energy.py`); sums are fp32 (`accumulator_bytes`). How many narrow products a multiplier makes
in a cycle is the field `rates` of an accelerator, 1 where it does not say: nothing is assumed to be faster. Two types in one
product go at the rate of the slower and cost the energy of the wider. GPUs have their own rates by type (fp8 on H200 alone).

`scripts/number_formats.py` rounds as the formats do, bit for bit as torch. Error of a product of normal numbers (256 x 256 x
256), root mean square over that of the result:

"""
TWO_FOUR = """## 2:4 weights

    trainyard run bert-base --on tensorcore --masks 'sparsity(W=2:4)'
    trainyard run bert-base --batch 64 --on 'h200(precision=bf16,graphs=true)' --masks 'sparsity(W=2:4,transposable=true)'

Exactly two of four neighbours along the reduction of the forward product are kept: input features, or input channels. A tensor core
(`structured=true`) and those of A100 and H200 take half of the steps and read values with 2 bits of place each; arrays that
look at zeros themselves (TensorDash, SIGMA) see the mask and schedule it. dX reduces along the other axis and gains only where
the mask is `transposable`, which is not assumed; dW never gains. A weight whose axis is no multiple of four stays whole.
`hardware/formats/structured.py` compresses and multiplies: the product is that of the masked matrix.

"""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(map(str, row))} |" for row in rows)]
    return "\n".join(lines) + "\n\n"


def run(options: str) -> ty.Result:
    return ty.run(MODEL, f"{NODE}{options})", batch=BATCH)


def milliseconds(result: ty.Result) -> str:
    return f"{result.time_s * 1e3:.1f}"


def largest(result: ty.Result) -> str:
    return f"{max(result.peak_memory_bytes.values()) / 2**30:.2f}"


def pipelines() -> Iterator[Sequence[object]]:
    plain = run("")
    yield "data parallel", 8, "", milliseconds(plain), largest(plain), ""
    for stages, count, schedule in ((4, 8, "gpipe"), (4, 8, "1f1b"), (4, 8, "interleaved"), (4, 16, "1f1b"), (8, 8, "1f1b")):
        found = run(f",parallel=pipeline,pipeline.stages={stages},pipeline.microbatches={count},pipeline.schedule={schedule}")
        bubble = Pipeline(microbatches=count, schedule=schedule).bubble(stages)  # type: ignore[arg-type]  # one of the three
        yield f"{schedule}, {stages} stages", 8 // stages, count, milliseconds(found), largest(found), f"{bubble:.1%}"


def stages_of_zero() -> Iterator[Sequence[object]]:
    whole = ty.zoo.load(MODEL, batch=BATCH)
    for stage in STAGES:
        kept = states_of(sharded(whole, 8, stage))
        found = run(f",zero={stage}")
        paper = model_states(7_500_000_000, 64, stage).total / 1e9
        yield stage, *(f"{size / 2**20:.0f}" for size in kept), milliseconds(found), largest(found), f"{paper:.1f}"


def experts() -> Iterator[Sequence[object]]:
    plans = (
        ("mcdla-b", ""),
        ("mcdla-b", "experts.ranks=2"),
        ("mcdla-b", "experts.ranks=4"),
        ("mcdla-b", "experts.ranks=8"),
        ("mcdla-b", "experts.imbalance=1.25"),
        ("mcdla-b", "experts.imbalance=1.5"),
        ("mcdla-b", "experts.imbalance=2"),
        ("mcdla-b", "experts.imbalance=2,experts.capacity_factor=1.25"),
        ("dc-dla", "experts.ranks=8"),
        ("hc-dla", "experts.ranks=8"),
    )
    for node, plan in plans:
        machine = f"{node}(overlay=off,parallel=expert,{plan})" if plan else f"{node}(overlay=off)"
        found = ty.run(MIXTURE, machine)
        synchronisation = found.by_class["synchronisation"]
        yield (
            node, plan.replace("experts.", "") or "data parallel", milliseconds(found), f"{synchronisation.time_s * 1e3:.1f}",
            f"{synchronisation.traffic_bytes['link'] / 8e9:.1f}", f"{found.macs / 1e12:.0f}", largest(found),
        )  # fmt: skip


def errors() -> Iterator[Sequence[object]]:
    draw = np.random.default_rng(0)
    a, b = draw.standard_normal((2, 256, 256))
    exact = a @ b
    for name, form in FORMATS.items():
        found = rounded(a, name).astype(np.float64) @ rounded(b, name).astype(np.float64)
        error = float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))
        yield name, form.bits, f"{form.largest:.4g}", f"{2.0 ** (form.least_exponent - form.significand):.3g}", f"{error:.2e}"


def precisions() -> Iterator[Sequence[object]]:
    for machine in ("npu(precision={})", "npu(precision={},rates.bf16=2,rates.fp8=4)", "h200(precision={},graphs=true)"):
        for precision in ("fp32", "bf16", "fp8"):
            name = machine.format(precision)
            found = ty.run("bert-base", name, batch=8)
            yield f"`{name}`", milliseconds(found), f"{found.energy_j:.2f}"


def weights() -> Iterator[Sequence[object]]:
    masks = "sparsity(W=0.0)", "sparsity(W=2:4)", "sparsity(W=2:4,transposable=true)"
    arrays = [(name, "bert-tiny", 32) for name in ("tensorcore", "tensordash", "sigma")]
    boards = [(f"{name}(precision=bf16,graphs=true)", "bert-base", 64) for name in ("a100", "h200")]
    for machine, model, batch in (*arrays, *boards):
        found = [ty.run(model, machine, masks=mask, batch=batch) for mask in masks]
        cycles = [one.array_cycles for one in found]
        array = [f"{cycles[0] / count:.2f}" if cycles[0] and count else "" for count in cycles[1:]]
        yield f"`{machine}`", f"{model}, {batch}", *(f"{found[0].time_s / one.time_s:.2f}" for one in found[1:]), *array


def main() -> None:
    PAGE.write_text(
        HEAD
        + PIPELINE
        + table(("plan", "replicas", "microbatches", "ms", "largest memory, GiB", "bubble if stages were equal"), pipelines())
        + ZERO
        + table(
            (
                "stage",
                "parameters, MiB",
                "gradients, MiB",
                "state, MiB",
                "ms",
                "peak memory, GiB",
                "7.5 billion on 64, GB (Fig. 1)",
            ),
            stages_of_zero(),
        )
        + EXPERTS
        + table(
            ("node", "experts", "ms", "exposed exchange, ms", "GB over links, every hop, a device", "MACs, T", "memory, GiB"),
            experts(),
        )
        + NUMBERS
        + table(("format", "bits", "largest", "smallest", "error"), errors())
        + "One step of bert-base, batch 8:\n\n"
        + table(("machine", "ms", "J"), precisions())
        + TWO_FOUR
        + "One step against dense weights:\n\n"
        + table(("machine", "step, batch", "faster", "transposable", "array alone", "transposable"), weights())
    )


if __name__ == "__main__":
    main()
