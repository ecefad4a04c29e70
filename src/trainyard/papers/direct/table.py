"""Table II without its efficiencies: time, energy and staleness of an epoch, and the speedups and cuts that the text derives.

*Staleness* is compared as parameter age, one reading of it: the age of the last exchange of all when a gradient is computed. The
details also have the latency of an exchange; the paper does not say which of the two its milliseconds are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trainyard.ir import Role
from trainyard.machines.presets.gpus import A100
from trainyard.papers.direct.measuring import (
    LINEAR,
    RESNET18,
    SYSTEMS,
    WORKLOADS,
    StepCost,
    System,
    Workload,
    listed,
    one_gpu,
    slashed,
    system,
)
from trainyard.papers.direct.printed import (
    UNITS,
    apart,
    details_of_energy,
    details_of_rate,
    gpu_images_per_s,
    powers,
    proof_of_cut,
    proof_of_energy,
    proof_of_rate,
    speedup_conflict,
    staleness_readings,
    stated,
)
from trainyard.papers.evidence import Undefined
from trainyard.papers.ledger import Experiments, Measured

YFCC = 97_000_000  # Amato et al., SISAP 2016: pictures of YFCC100M-HNfc6
PCIE_BYTES_PER_S = 25e9  # assumed: what copies get of PCIe 4.0 x16, 31.5 GB/s
PIM: tuple[System, ...] = ("PIM-Opt", "DIRECT")
STALENESS = ("Sec. III-B", "Sec. IV", "Sec. V-A", "Table II", "Sec. VI-A")


def epoch_s(name: System, workload: Workload) -> float:
    """On 2048 DPUs, or on one A100; one that does not hold the samples is fed over PCIe."""
    if name == "A100":
        return one_gpu(workload)[0] if holds(workload) else fed_s(workload)
    return workload.steps * system(name, workload).time_s


def holds(workload: Workload) -> bool:
    """Whether an A100 holds the epoch; pictures are read from disk and decoded in any case."""
    return workload is not LINEAR or epoch_bytes(workload) <= A100.dram_capacity_bytes


def epoch_joules(name: System, workload: Workload) -> Mapping[str, float]:
    """Of a PIM machine by component."""
    return {part: workload.steps * joules for part, joules in system(name, workload).joules.items()}


def epoch_j(name: System, workload: Workload) -> float:
    return one_gpu(workload)[1] if name == "A100" else sum(epoch_joules(name, workload).values())


def fed_s(workload: Workload) -> float:
    """An epoch on one A100 whose samples come over PCIe, while it computes."""
    return max(one_gpu(workload)[0], epoch_bytes(workload) / PCIE_BYTES_PER_S)


def epoch_bytes(workload: Workload) -> int:
    step = workload.step
    taken = sum(one.bytes for one in step.tensors if one.role in (Role.INPUT, Role.TARGET) and one.view_of is None)
    return workload.samples * taken // step.batch


def feeding() -> str:
    return (
        f"The epoch's {epoch_bytes(LINEAR) / 1e9:.1f} GB exceed the board's {A100.dram_capacity_bytes / 1e9:.0f}: fed over PCIe 4 "
        f"x16 at {PCIE_BYTES_PER_S / 1e9:.0f} GB/s it takes {fed_s(LINEAR):.2f} s, and DIRECT is "
        f"{fed_s(LINEAR) / epoch_s('DIRECT', LINEAR):.2f} times as fast; with the samples in its memory it would take "
        f"{one_gpu(LINEAR)[0]:.2f} s, and DIRECT be {one_gpu(LINEAR)[0] / epoch_s('DIRECT', LINEAR):.2f}."
    )


def _time_linear() -> Measured:
    seconds = [epoch_s(name, LINEAR) for name in SYSTEMS]
    share = YFCC / LINEAR.samples
    return Measured(
        seconds,
        verdict="undefined",
        evidence=Undefined(
            missing="the samples of an epoch, which the memories of 2048 DPUs cannot hold if they are all of YFCC100M",
            looked_in=("Sec. V", "Table I", "Sec. V-A", "Sec. VI-A"),
            readings={
                f"{LINEAR.samples / 1e6:.1f} million, as many as fit": tuple(seconds),
                f"all {YFCC / 1e6:.0f} million": tuple(share * one for one in seconds),
            },
        ),
        note=f"An epoch of {LINEAR.samples:,} samples ({LINEAR.steps:.0f} steps), as many as PIM-Opt's 2048 DPUs can store.",
        details=f"All {YFCC / 1e6:.0f} million samples of YFCC100M would not fit and take "
        f"{slashed([share * s for s in seconds], 1)} s. PIM-Opt rank-parallel: "
        f"{epoch_s('PIM-Opt, rank-parallel', LINEAR):.1f} s, DPU by DPU: {epoch_s('PIM-Opt, DPU by DPU', LINEAR):.0f}. One A100 "
        f"with batches of {LINEAR.gpu_batch}; with 8 it is bound by kernel starts: {one_gpu(LINEAR, 8)[0]:.0f} s. {feeding()}",
    )


def _time_resnet18() -> Measured:
    pictures = gpu_images_per_s()
    cluster = RESNET18.samples / (RESNET18.gpu_batch * UNITS) * system("A100", RESNET18).time_s
    return Measured(
        [epoch_s(name, RESNET18) for name in SYSTEMS],
        verdict="contradicted",
        proof=proof_of_rate(),
        details=f"{details_of_rate()} Ours is on DPUs with 16 bf16 MACs at 1 GHz and 512 MiB. PIM-Opt rank-parallel: "
        f"{epoch_s('PIM-Opt, rank-parallel', RESNET18):,.0f} s. One A100, batch {RESNET18.gpu_batch}; "
        f"{stated('time.resnet18')[2]:g} s are {pictures.text(0)} pictures/s, one board's rate; {UNITS} boards: {cluster:.2f} s.",
    )


def _energy(workload: Workload) -> Measured:
    parts = {name: epoch_joules(name, workload) for name in PIM}
    by_component = "; ".join(f"{name}: {listed(joules, 1)}" for name, joules in parts.items())
    watts = [epoch_j(name, workload) / epoch_s(name, workload) for name in SYSTEMS]
    return Measured(
        [epoch_j(name, workload) for name in SYSTEMS],
        verdict="contradicted",
        proof=proof_of_energy(workload.name),
        details=f"{details_of_energy(workload.name)} Ours by component, J an epoch: {by_component}. Mean power "
        f"{slashed(watts, 0)} W.",
    )


def cut(before: float, after: float) -> float:
    return 100 * (1 - after / before)


def _energy_cut() -> Measured:
    cuts = {
        f"{one.name} over {name}": cut(epoch_j(name, one), epoch_j("DIRECT", one))
        for one in WORKLOADS
        for name in ("PIM-Opt", "A100")
    }
    host, gpu = (sum(value for name, value in cuts.items() if name.endswith(other)) / 2 for other in ("PIM-Opt", "A100"))
    times = [cut(epoch_s("PIM-Opt", one), epoch_s("DIRECT", one)) for one in WORKLOADS]
    return Measured(
        [host, gpu],
        verdict="contradicted",
        proof=proof_of_cut(),
        note="Ours are means of the two workloads; the saving is the power of waiting DPUs and of the host.",
        details=f"{listed(cuts, 1)}. Time falls by {slashed(times, 1)} %. The paper's joules over its seconds are the same within "
        f"{100 * max(apart(*powers(one.name)[:2]) for one in WORKLOADS):.1f} % for PIM-Opt and DIRECT.",
    )


def _staleness(workload: Workload) -> Measured:
    runs: list[StepCost] = [system(name, workload) for name in SYSTEMS]
    ages, waits = tuple(1e3 * one.age_s for one in runs), tuple(1e3 * one.latency_s for one in runs)
    return Measured(
        ages,
        verdict="undefined",
        evidence=Undefined(
            missing="what its milliseconds of staleness are",
            looked_in=STALENESS,
            readings={"age of the parameters": ages, "latency of an exchange": waits},
        ),
        note=f"Mean parameter age; DIRECT exchanges only every {runs[1].local_steps} steps, so that its parameters are older.",
        details=f"Exchange latency {slashed([1e3 * one.latency_s for one in runs], 3)} ms. With an exchange in every step DIRECT's "
        f"parameters would be {1e3 * (runs[1].latency_s + runs[1].local_s):.1f} ms old. A100: {UNITS} boards.",
    )


def _staleness_cut() -> Measured:
    ages = {one.name: [system(name, one).age_s for name in SYSTEMS] for one in WORKLOADS}
    waits = {one.name: cut(system("PIM-Opt", one).latency_s, system("DIRECT", one).latency_s) for one in WORKLOADS}
    by_latency = {one.name: [system(name, one).latency_s for name in SYSTEMS] for one in WORKLOADS}
    cuts = {
        what: tuple(sum(cut(one[column], one[1]) for one in values.values()) / 2 for column in (0, 2))
        for what, values in (("age of the parameters", ages), ("latency of an exchange", by_latency))
    }
    return Measured(
        cuts["age of the parameters"],
        verdict="undefined",
        evidence=Undefined(missing="the staleness that is cut", looked_in=STALENESS, readings=cuts),
        note="Cut of the parameter age, mean of the two workloads; negative where it is older.",
        details=f"Exchange latency falls by {listed(waits, 1)} %. {staleness_readings()}",
    )


def _speedup() -> Measured:
    ratios = [epoch_s("PIM-Opt", one) / epoch_s("DIRECT", one) for one in WORKLOADS]
    real, serial = (
        [epoch_s(name, one) / epoch_s("DIRECT", one) for one in WORKLOADS]
        for name in ("PIM-Opt, rank-parallel", "PIM-Opt, DPU by DPU")
    )  # fmt: skip
    return Measured(
        ratios,
        verdict="contradicted",
        proof=speedup_conflict(),
        note=f"Over PIM-Opt that transfers as Eq. 1 says, with the bandwidth of a rank; over real systems' rank-parallel transfers "
        f"{slashed(real)}, over transfers DPU by DPU {slashed(serial, 0)}.",
        details="Ours are also the ratios of our efficiencies.",
    )


def _speedup_gpu() -> Measured:
    from trainyard.papers.direct.readings import search

    return Measured(
        [epoch_s("A100", one) / epoch_s("DIRECT", one) for one in WORKLOADS],
        verdict="open",
        evidence=search(RESNET18),
        note=f"{UNITS} DPUs against one A100 (batch {LINEAR.gpu_batch} and {RESNET18.gpu_batch}), which the linear model's samples "
        "reach over PCIe.",
        details="With batches of 8 and 32 "
        f"{slashed([one_gpu(one, batch)[0] / epoch_s('DIRECT', one) for one, batch in ((LINEAR, 8), (RESNET18, 32))])}. "
        f"Linear: {feeding()}",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "direct.time.linear":        _time_linear,
    "direct.time.resnet18":      _time_resnet18,
    "direct.energy.linear":      partial(_energy, LINEAR),
    "direct.energy.resnet18":    partial(_energy, RESNET18),
    "direct.energy_cut":         _energy_cut,
    "direct.staleness.linear":   partial(_staleness, LINEAR),
    "direct.staleness.resnet18": partial(_staleness, RESNET18),
    "direct.staleness_cut":      _staleness_cut,
    "direct.speedup.pim_opt":    _speedup,
    "direct.speedup.gpu":        _speedup_gpu,
}
# fmt: on
