"""Digits trained by DIRECT's algorithm in real processes, each a cluster of DPUs.

    torchrun --nproc-per-node 4 examples/direct_ddp.py

The network is wrapped in an unmodified DistributedDataParallel on the backend `direct`. Gradients stay in a cluster; when models
are older than --tau steps they are averaged. At the end: the accuracy, and the real time of every kind of collective beside what
the simulated machine would have taken, compute included. --checkpoint saves, --resume goes on from there, to the same parameters.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trainyard as ty
from trainyard.live import direct
from trainyard.units import show
from trainyard.workloads.datasets.batches import Batches, Part
from trainyard.workloads.datasets.digits import digits

TEST = 297  # digits held out


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default="direct(dpus=64,cluster_size=16)", help="what is simulated; one cluster a process")
    parser.add_argument("--tau", type=int, default=7, help="local steps that a model may be old")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="so many steps in place of epochs")
    parser.add_argument("--batch", type=int, default=16, help="samples of a process in a step")
    parser.add_argument("--processes-per-cluster", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, help="folder to save in, at the end and every --save-every steps")
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --checkpoint")
    parser.add_argument("--report", type=Path, help="file for the report, as JSON")
    chosen = parser.parse_args()
    if chosen.resume and chosen.checkpoint is None:
        parser.error("--resume needs --checkpoint FOLDER, the folder that was saved in")
    return chosen


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def accuracy(model: nn.Module, part: Part) -> float:
    images, labels = map(torch.as_tensor, part.take(np.arange(part.samples)))
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def train(chosen: argparse.Namespace, system: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    source = digits()
    each = (source.samples - TEST) // size
    batches = Batches(source=Part(source=source, first=TEST + rank * each, samples=each), batch=chosen.batch, seed=rank)

    module = network()
    per_dpu = max(1, chosen.batch * chosen.processes_per_cluster // system.dpus_per_cluster)
    images, labels = (tensor[:per_dpu] for tensor in batches.at(0))
    step_of_a_dpu = ty.capture(module, images, labels, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(module.parameters()))

    model = DistributedDataParallel(module)
    model.register_comm_hook(direct.clusters(chosen.processes_per_cluster), direct.cluster_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    averager = direct.StalenessAverager(chosen.tau)
    parts = {"model": model, "optimizer": optimizer, "averager": averager}

    first, last = 0, chosen.steps or chosen.epochs * batches.steps_per_epoch
    if chosen.resume:
        first, _ = direct.load(chosen.checkpoint, **parts)
    began = time.perf_counter()
    for step in range(first, last):
        images, labels = batches.at(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        direct.charge_step(step_of_a_dpu)
        if chosen.checkpoint and ((step + 1) % chosen.save_every == 0 or step + 1 == last):
            direct.save(chosen.checkpoint, step=step + 1, **parts)
    averager.exchange(model.parameters())
    real_s = time.perf_counter() - began

    report = direct.report(merged=True)
    if report:
        found = accuracy(model, Part(source=source, first=0, samples=TEST))
        print(report)
        print(
            f"\n{source.name}: {100 * found:.1f} % of {TEST} held out, loss {loss.item():.3f}, {last - first} steps, "
            f"{averager.exchanges} exchanges\nreal {show(real_s, 's')}; simulated {show(report.simulated_s, 's')} and "
            f"{show(report.simulated_j, 'J')} on {report.machine}"
        )
        if chosen.report:
            parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in module.parameters())
            told = {"accuracy": found, "steps": last, "exchanges": averager.exchanges, "real_s": real_s, **report.to_dict()}
            chosen.report.write_text(json.dumps({**told, "parameters": hashlib.sha256(parameters).hexdigest()}, indent=1))


def main() -> None:
    chosen = options()
    torch.set_num_threads(1)
    system = ty.machine(chosen.machine)
    dist.init_process_group("direct", pg_options=direct.Options(machine=system))
    train(chosen, system)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
