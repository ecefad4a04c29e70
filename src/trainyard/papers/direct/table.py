"""Table II beside its efficiencies: time, energy and staleness of an epoch, and the speedups and cuts that the text makes of them.

*Staleness* is compared as parameter age, one reading of it: how old the last exchange of all is when a gradient is there. What an
exchange takes, its latency, is printed beside it; the paper does not say which of the two its milliseconds are.
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
    Ran,
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
    gpu_images_per_s,
    powers,
    proof_of_energy,
    proof_of_rate,
    said,
    told_of_speedup,
    told_of_staleness,
)
from trainyard.papers.ledger import Experiments, Measured

YFCC = 97_000_000  # Amato et al., SISAP 2016: pictures of YFCC100M-HNfc6
PCIE_BYTES_PER_S = 25e9  # assumed: what copies get of PCIe 4.0 x16, 31.5 GB/s
PIM: tuple[System, ...] = ("PIM-Opt", "DIRECT")


def epoch_s(name: System, workload: Workload) -> float:
    return one_gpu(workload)[0] if name == "A100" else workload.steps * system(name, workload).time_s


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


def told_of_feeding() -> str:
    return (
        f"the epoch's {epoch_bytes(LINEAR) / 1e9:.1f} GB exceed the board's {A100.dram_capacity_bytes / 1e9:.0f}: fed over PCIe 4 "
        f"x16 at {PCIE_BYTES_PER_S / 1e9:.0f} GB/s it takes {fed_s(LINEAR):.2f} s and DIRECT is "
        f"{fed_s(LINEAR) / epoch_s('DIRECT', LINEAR):.2f} times as fast"
    )


def _time_linear() -> Measured:
    found = [epoch_s(name, LINEAR) for name in SYSTEMS]
    share = YFCC / LINEAR.samples
    return Measured(
        found,
        note=f"{LINEAR.samples:,} samples, {LINEAR.steps:.0f} steps, what PIM-Opt's 2048 DPUs hold; all {YFCC / 1e6:.0f} million "
        f"of YFCC100M would not fit them and take {slashed([share * one for one in found], 1)} s. PIM-Opt as Eq. 1 transfers: "
        f"{epoch_s('PIM-Opt, Eq. 1', LINEAR):.0f} s. One A100 with batches of {LINEAR.gpu_batch}; with 8 it starts kernels all "
        f"the time: {one_gpu(LINEAR, 8)[0]:.0f} s. Samples are in its memory here; {told_of_feeding()}",
    )


def _time_resnet18() -> Measured:
    pictures = gpu_images_per_s()
    cluster = RESNET18.samples / (RESNET18.gpu_batch * UNITS) * system("A100", RESNET18).time_s
    return Measured(
        [epoch_s(name, RESNET18) for name in SYSTEMS],
        verdict="contradicted",
        proof=proof_of_rate(),
        note=f"ours on DPUs with 16 bf16 MACs at 1 GHz and 512 MiB. PIM-Opt as Eq. 1 transfers: "
        f"{epoch_s('PIM-Opt, Eq. 1', RESNET18):,.0f} s. One A100, batch {RESNET18.gpu_batch}; {said('time.resnet18')[2]:g} s are "
        f"{pictures.told(0)} pictures/s, one board's rate; {UNITS} boards take {cluster:.2f} s",
    )


def _energy(workload: Workload) -> Measured:
    parts = {name: epoch_joules(name, workload) for name in PIM}
    told = "; ".join(f"{name}: {listed(joules, 1)}" for name, joules in parts.items())
    watts = [epoch_j(name, workload) / epoch_s(name, workload) for name in SYSTEMS]
    return Measured(
        [epoch_j(name, workload) for name in SYSTEMS],
        verdict="contradicted",
        proof=proof_of_energy(workload.name),
        note=f"ours by component, J an epoch: {told}. Mean power {slashed(watts, 0)} W",
    )


def cut(before: float, after: float) -> float:
    return 100 * (1 - after / before)


def _energy_cut() -> Measured:
    found = {
        f"{one.name} over {name}": cut(epoch_j(name, one), epoch_j("DIRECT", one))
        for one in WORKLOADS
        for name in ("PIM-Opt", "A100")
    }
    host, gpu = (sum(value for name, value in found.items() if name.endswith(of)) / 2 for of in ("PIM-Opt", "A100"))
    times = [cut(epoch_s("PIM-Opt", one), epoch_s("DIRECT", one)) for one in WORKLOADS]
    return Measured(
        [host, gpu],
        note=f"means of the two workloads: {listed(found, 1)}. Time falls by {slashed(times, 1)} %: what is saved is the power of "
        "DPUs that wait, and the host's. The paper's joules over its seconds are the same within "
        f"{100 * max(apart(*powers(one.name)[:2]) for one in WORKLOADS):.1f} % for PIM-Opt and DIRECT",
    )


def _staleness(workload: Workload) -> Measured:
    runs: list[Ran] = [system(name, workload) for name in SYSTEMS]
    return Measured(
        [1e3 * one.age_s for one in runs],
        note=f"mean parameter age; exchange latency {slashed([1e3 * one.latency_s for one in runs], 3)} ms. DIRECT exchanges every "
        f"{runs[1].local_steps} steps and its parameters are the older for it; with an exchange in every step they were "
        f"{1e3 * (runs[1].latency_s + runs[1].local_s):.1f} ms old. A100: {UNITS} boards",
    )


def _staleness_cut() -> Measured:
    ages = {one.name: [system(name, one).age_s for name in SYSTEMS] for one in WORKLOADS}
    waits = {one.name: cut(system("PIM-Opt", one).latency_s, system("DIRECT", one).latency_s) for one in WORKLOADS}
    host, gpu = (sum(cut(age[column], age[1]) for age in ages.values()) / 2 for column in (0, 2))
    return Measured(
        [host, gpu],
        note=f"ours of ages, means of the two workloads: below 0, older. Exchange latency falls by {listed(waits, 1)} %. Two "
        f"readings: {told_of_staleness()}",
    )


def _speedup() -> Measured:
    ratios = [epoch_s("PIM-Opt", one) / epoch_s("DIRECT", one) for one in WORKLOADS]
    serial = [epoch_s("PIM-Opt, Eq. 1", one) / epoch_s("DIRECT", one) for one in WORKLOADS]
    return Measured(
        ratios,
        note=f"ours is the ratio of our efficiencies too; over PIM-Opt as Eq. 1 transfers {slashed(serial, 0)}. In the paper "
        f"{told_of_speedup()}",
    )


def _speedup_gpu() -> Measured:
    return Measured(
        [epoch_s("A100", one) / epoch_s("DIRECT", one) for one in WORKLOADS],
        note=f"{UNITS} DPUs against one A100 (batch {LINEAR.gpu_batch} and {RESNET18.gpu_batch}); with batches of 8 and 32 "
        f"{slashed([one_gpu(one, batch)[0] / epoch_s('DIRECT', one) for one, batch in ((LINEAR, 8), (RESNET18, 32))])}. "
        f"Linear: {told_of_feeding()}",
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
