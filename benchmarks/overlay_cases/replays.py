"""The section of docs/overlay_models.md on calls that are replayed as CUDA graphs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from overlay_cases.comparison import AT_ITS_PEAK, Row, comparison, is_same_code, label, times_as_fast, took_turns, wrapped
from overlay_cases.fronts import ROOMY, TOLERANCE

MACHINE = "h200(optimizer=fused)"
"""The optimizer of the measurements is one kernel for the whole update."""

AFTER_WORKSPACES = ("llama-1b", "qwen-1.5b", "whisper-medium", "llama-7b")
"""Networks that were measured since recordings give their workspaces back."""


def guess_of(rows: Sequence[Row], measured: Row) -> Row | None:
    """The simulated row for the budget of a measured one."""
    within = [row for row in rows if row["gib"] <= measured["budget_gib"]]
    return within[-1] if within else None


def error_of(guess: Row, measured: Row) -> float:
    """Percent by which a simulated time is too large."""
    return float(100 * (guess["ms"] / measured["ms"] - 1))


def replayed(data: Row) -> list[str]:
    """The newest measurements, in which calls of blocks are replayed as CUDA graphs where that is faster."""
    return [
        "## Calls that are replayed",
        "",
        *wrapped(
            "A host that issues every kernel by itself is often slower than the device. So calls of blocks, and of whole compiled "
            "models, are recorded as CUDA graphs and replayed, where the contest of the first steps finds that faster by more than "
            "a percent (`replay=None`, the default on a GPU; `replay=False` never). Recordings take memory of their own, which "
            "`torch.cuda.max_memory_allocated` does not show. It counts towards the budget and is part of every peak here. An *r* "
            "marks what was replayed."
        ),
        *wrapped(
            "Results lie in memory that the next step writes to. What a loop still holds then, as `outputs` of the step before, "
            "moves to other memory first. Where that cannot be done, as for a view (`logits[:, -1]`), one or two steps "
            "are not replayed, and copies are handed out from then on."
        ),
        *comparison(data["replayed"]),
        *wrapped(
            "These are measurements of four GPU runs. Missing is one row: Swin at the peak of the share of 0.2. In the next "
            "section, before replays, both sides run the model compiled as a whole there. Swin's row of gradient checkpointing "
            "is of the first run. While ViT was measured, two other networks were traced on other cores and on the device, which "
            "made some of its steps slow (the share of 1.0 took 174 ms before). In the second half of Whisper's rows the host was "
            f"slow and uneven, for both sides alike: {host_range(data['replayed'], 'whisper-medium', 'torch.compile, budget 0.5')} "
            "for a step of the same code, the share of 0.5. Two choices that were surely wrong by an older rule are right here: "
            "ConvNeXt's at the peak of the share of 0.2 (0.81 times as fast then) and the UNet's at that of 0.5 (0.92)."
        ),
        *wrapped(
            "What replays are worth depends on the host: the time that it needs to issue a step falls from "
            f"{'; '.join(host_times(data['replayed']))}. Where kernels take longer than that anyway, nothing is gained, and blocks "
            "are called. At the peak of a checkpoint there is no room for recordings."
        ),
        *wrapped(
            f"With {ROOMY} times the plain peak nothing has to move. There the overlay is "
            f"{with_room(data['replayed'])} times as fast as plain training."
        ),
        *beside_simulator(data),
        *wrapped(
            f"{above_budget(data['replayed'])} "
            "Workspaces for products take 66 MiB on the stream of a recording, and one that was not finished did not give "
            "them back. It does since: in the four networks that were measured after that, the alternatives' peaks have grown by "
            f"at most {largest_growth_mib(data['replayed'], AFTER_WORKSPACES):.1f} MiB since they set a budget. ViT itself has not "
            "been measured again."
        ),
    ]


def with_room(networks: Sequence[Row]) -> str:
    """How much faster than plain training overlays without a compiler are that have more memory than they need."""
    texts = []
    for network in networks:
        plain = next(row for row in network["alternatives"] if row["name"] == "plain")
        row = next(row for row in network["overlay"] if not row["compile"] and row["budget_gib"] > AT_ITS_PEAK * plain["gib"])
        texts.append(f"{times_as_fast(plain, row):.3f} ({label(network)})")
    return ", ".join(texts)


def growth_mib(alternative: Row, row: Row) -> float:
    """By how much an alternative's peak has grown since it became the budget of the overlay beside it."""
    return float(1024 * (alternative["gib"] - row["budget_gib"] / TOLERANCE))


def largest_growth_mib(networks: Sequence[Row], names: Sequence[str]) -> float:
    return max(
        growth_mib(alternative, row)
        for network in networks
        if network["name"] in names
        for alternative in network["alternatives"]
        for row in network["overlay"]
        if took_turns(alternative, row)
    )


def above_budget(networks: Sequence[Row]) -> str:
    """How far peaks are above their budgets, and by how much the alternatives beside them have grown since those were set."""
    texts = []
    for network in networks:
        alternatives = {row["name"]: row for row in network["alternatives"]}
        for row in network["overlay"]:
            if row.get("gib", 0.0) > row["budget_gib"]:
                above_mib = 1024 * (row["gib"] - row["budget_gib"])
                texts.append(
                    f"A peak of {label(network)} is {above_mib:.0f} MiB above its budget; {row['beside']} beside it takes "
                    f"{growth_mib(alternatives[row['beside']], row):.0f} MiB more than when it set that budget."
                )
    return " ".join(texts)


def beside_simulator(data: Row) -> list[str]:
    """The eager overlays of these runs beside what the simulator says of their budgets."""
    simulated = {network["name"]: network["simulated"] for network in data["networks"]}
    lines = ["| network | budget GiB | step ms | simulated ms | error |", "|---|---:|---:|---:|---:|"]
    errors = []
    for network in data["replayed"]:
        for row in network["overlay"]:
            guess = guess_of(simulated[network["name"]], row)
            if row["compile"] or "ms" not in row or guess is None:
                continue
            errors.append(error_of(guess, row))
            mark = " r" if row.get("replayed") else ""
            lines.append(
                f"| {label(network)} | {row['budget_gib']:.2f} | {row['ms']:.1f}{mark} | {guess['ms']:.1f} | {errors[-1]:+.0f} % |"
            )
    return [
        *wrapped(
            "Where a host cannot keep up, it is replayed away, and what is left is what the simulator knows best. "
            f"`ty.plan_memory(step, on='{MACHINE}')`, from the captured shapes alone and unchanged since before these runs, is at "
            f"most {max(map(abs, errors)):.0f} % off in all {len(errors)} rows without a compiler, "
            f"{statistics.median(map(abs, errors)):.0f} % in the middle:"
        ),
        *lines,
        "",
    ]


def host_range(networks: Sequence[Row], name: str, alternative: str) -> str:
    """The least and the longest time that the host needed for a step of an alternative, also where an overlay ran its code."""
    network = next(one for one in networks if one["name"] == name)
    theirs = next(row for row in network["alternatives"] if row["name"] == alternative)
    times = [row["host_ms"] for row in (theirs, *(one for one in network["overlay"] if is_same_code(theirs, one)))]
    return f"{min(times):.0f} to {max(times):.0f} ms"


def host_times(networks: Sequence[Row]) -> list[str]:
    """The host's time for a step, of alternatives and of the overlays that replay beside them."""
    texts = []
    for network in networks:
        alternatives = {row["name"]: row for row in network["alternatives"]}
        rows = [(alternatives[row["beside"]], row) for row in network["overlay"] if row.get("replayed")]
        if rows:
            theirs, ours = max(rows, key=lambda pair: pair[0]["host_ms"] / pair[1]["host_ms"])
            texts.append(f"{theirs['host_ms']:.0f} to {ours['host_ms']:.0f} ms ({label(network)}, {theirs['name']})")
    return texts
