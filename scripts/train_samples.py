"""Trains TensorDash's models, and SIGMA's with pruned weights, on stand-in data and keeps where their zeros were.

python scripts/train_samples.py train FOLDER [--only vgg16,ncf] [--smoke] [--device cuda]   about ten minutes on one H200
python scripts/train_samples.py pack FOLDER [FOLDER ...]                                    anywhere: chooses what the package ships

`train` writes, of each model, the masks of one random batch of every epoch (NAME.safetensors.xz: A and G of a few samples, W where
it has zeros) and `results.json`: losses, accuracies, and the densities of every layer at every epoch. Plain fp32, TF32 allowed in
products. Shapes are the zoo's, so that the masks fit `zoo.load(NAME)`; Mask R-CNN has smaller pictures and fewer regions.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from stand_ins.captions import Captions
from stand_ins.objects import Objects
from stand_ins.pictures import Pictures
from stand_ins.ratings import Ratings
from stand_ins.sentences import MaskedPairs, Sentences
from stand_ins.text import Text
from stand_ins.translations import Translations
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from trainyard.masks.recorded import Masks, MaskWriter
from trainyard.workloads import zoo
from trainyard.workloads.datasets.batches import Batches, Part, Source
from trainyard.workloads.epochs import random_batches
from trainyard.workloads.recording import record_masks
from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision import mask_rcnn
from trainyard.workloads.zoo.vision.boxes import iou

EPOCHS = 8
DENSITY = 0.1  # TensorDash, Sec. IV-A: both pruning methods target 90 %
PICTURE = 192  # pixels of Mask R-CNN's pictures
REALLOCATED = 25  # steps between two reallocations of dynamic sparse reparameterisation: two an epoch
REGIONS, FOREGROUND = 128, 16  # of Mask R-CNN, a quarter and an eighth of the zoo's, so that the sample stays small
EVALUATED = 4  # batches
CLIPPED = 2.0  # norm of all gradients together
Accuracy = Callable[..., Tensor]


def chosen_class(output: Tensor, labels: Tensor) -> Tensor:
    return (output.argmax(-1) == labels).float().mean()


def chosen_word(output: Tensor, words: Tensor) -> Tensor:
    counted = words >= 0
    return ((output.argmax(-1) == words) & counted).sum() / counted.sum()


def hidden_word(output: tuple[Tensor, Tensor], words: Tensor, follows: Tensor) -> Tensor:
    return chosen_word(output[0], words)


def liked(output: Tensor, likes: Tensor) -> Tensor:
    return ((output > 0) == (likes > 0.5)).float().mean()


def found_objects(output: tuple[Any, Tensor], labels: Tensor, rasters: Tensor) -> Tensor:
    """Share of the regions on an object whose kind is named."""
    detection = output[0]
    overlap, matched = iou(detection.regions, detection.boxes).max(-1)
    kinds = labels.gather(1, matched).flatten()
    on_object = (overlap >= 0.5).flatten()
    return ((detection.scores.argmax(-1) == kinds) & on_object).sum() / on_object.sum().clamp(min=1)


def sgd(rate: float, decay: float = 5e-4) -> Callable[[nn.Module], Optimizer]:
    return lambda model: SGD([p for p in model.parameters() if p.requires_grad], lr=rate, momentum=0.9, weight_decay=decay)


def adamw(rate: float, decay: float = 0.01) -> Callable[[nn.Module], Optimizer]:
    return lambda model: AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, weight_decay=decay)


def careful_trunk(rate: float, trunk_rate: float) -> Callable[[nn.Module], Optimizer]:
    """A slower rate for an encoder without normalisation and what joins it to an LSTM, whose gates would saturate for good."""

    def build(model: nn.Module) -> Optimizer:
        slow = [p for name in ("encoder", "image_embedding") for p in model.get_submodule(name).parameters()]
        slow_ids = {id(p) for p in slow}
        fast = [p for p in model.parameters() if id(p) not in slow_ids]
        return AdamW([{"params": fast, "lr": rate}, {"params": slow, "lr": trunk_rate}], lr=rate, weight_decay=0.01)

    return build


@dataclass(frozen=True, kw_only=True)
class Training:
    """One run. `inputs`: how many of a batch's tensors go into the model, the rest are targets; `weights`: layers whose W stays."""

    name: str
    model: str
    source: Callable[[int, int, str], Source]
    optimizer: Callable[[nn.Module], Optimizer]
    accuracy: Accuracy
    batch: int
    steps_per_epoch: int
    recorded: int = 4
    kept: int = 1
    inputs: int = 1
    epochs: int = EPOCHS
    sparsity: str | None = None
    density: float = DENSITY
    weights: tuple[str, ...] = ()
    warm_start: str | None = None
    seed: int = 0

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch


def pictures(samples: int, seed: int, device: str) -> Source:
    return Pictures(samples=samples, seed=seed, device=device)


def few_classes(samples: int, seed: int, device: str) -> Source:
    """A hundred of them: what a short run can learn."""
    return Pictures(samples=samples, classes=100, seed=seed, device=device)


def recipe(training: Training) -> Recipe:
    if training.model != "mask-rcnn":
        return zoo.build(training.model)
    mask_rcnn.REGIONS, mask_rcnn.FOREGROUND = REGIONS, FOREGROUND
    return mask_rcnn.mask_rcnn(PICTURE, PICTURE)


# fmt: off
TRAININGS = (
    Training(name="vgg16", model="vgg16", source=few_classes,
             optimizer=adamw(1e-4), accuracy=chosen_class, batch=32, steps_per_epoch=50, recorded=2),
    Training(name="squeezenet", model="squeezenet", source=pictures, optimizer=adamw(4e-4), accuracy=chosen_class, batch=128,
             steps_per_epoch=250),
    Training(name="resnet50", model="resnet50", source=few_classes, optimizer=sgd(0.05, 1e-4), accuracy=chosen_class, batch=128,
             steps_per_epoch=80),
    Training(name="resnet50-sparse-momentum", model="resnet50", source=few_classes, optimizer=sgd(0.05, 1e-4),
             accuracy=chosen_class, batch=128, steps_per_epoch=100, sparsity="sparse momentum"),
    Training(name="resnet50-reparameterised", model="resnet50", source=few_classes, optimizer=sgd(0.05, 1e-4),
             accuracy=chosen_class, batch=128, steps_per_epoch=100, sparsity="dynamic sparse reparameterisation"),
    Training(name="mask-rcnn", model="mask-rcnn",
             source=lambda n, seed, device: Objects(samples=n, height=PICTURE, width=PICTURE, seed=seed, device=device),
             optimizer=adamw(2e-4), accuracy=found_objects, batch=4, steps_per_epoch=120, inputs=2, warm_start="resnet50",
             recorded=2),
    Training(name="bert-base", model="bert-base", source=lambda n, seed, device: MaskedPairs(samples=n, seed=seed, device=device),
             optimizer=adamw(1e-4), accuracy=hidden_word, batch=64, steps_per_epoch=150, inputs=4, kept=2),
    Training(name="snli", model="snli", source=lambda n, seed, device: Sentences(samples=n, seed=seed, device=device),
             optimizer=adamw(1e-3), accuracy=chosen_class, batch=128, steps_per_epoch=300, inputs=2, recorded=128, kept=32),
    Training(name="ncf", model="ncf", source=lambda n, seed, device: Ratings(samples=n, seed=seed, device=device),
             optimizer=adamw(2e-3, 1e-5), accuracy=liked, batch=256, steps_per_epoch=2000, inputs=2, recorded=256, kept=256),
    Training(name="show-and-tell", model="show-and-tell",
             source=lambda n, seed, device: Captions(samples=n, seed=seed, device=device),
             optimizer=careful_trunk(1e-3, 5e-5), accuracy=chosen_word, batch=64, steps_per_epoch=45, inputs=2, recorded=2),
    Training(name="gcn", model="gcn", source=lambda n, seed, device: Text(samples=n, seed=seed, device=device),
             optimizer=adamw(5e-4), accuracy=chosen_word, batch=32, steps_per_epoch=60),
    # SIGMA, Sec. II: weights pruned slowly, as Zhu and Gupta do it, to 70, 80 and 90 %
    Training(name="resnet50-pruned", model="resnet50", source=few_classes, optimizer=sgd(0.05, 1e-4), accuracy=chosen_class,
             batch=128, steps_per_epoch=100, sparsity="gradual pruning", density=0.3, kept=2),
    Training(name="transformer-324m-pruned", model="transformer-324m",
             source=lambda n, seed, device: Text(samples=n, sequence=84, vocabulary=31_999, seed=seed, device=device),
             optimizer=adamw(2e-4), accuracy=chosen_word, batch=16, steps_per_epoch=150, sparsity="gradual pruning", density=0.2,
             kept=1, weights=("layers.11",)),
    Training(name="gnmt-pruned", model="gnmt",
             source=lambda n, seed, device: Translations(samples=n, seed=seed, device=device),
             optimizer=adamw(1e-3), accuracy=chosen_word, batch=32, steps_per_epoch=100, inputs=2, sparsity="gradual pruning",
             density=0.1, kept=1, weights=("encoder.rnn_layers.2", "decoder.attention", "decoder.bottom")),
)
# fmt: on


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def warmed(step: int, steps: int) -> float:
    """A short linear rise, then half a cosine down to a twentieth."""
    rise = max(1, steps // 10)
    if step < rise:
        return (step + 1) / rise
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def pruning(training: Training, model: nn.Module, optimizer: Optimizer) -> Any:
    if training.sparsity is None:
        return None
    from trainyard.live.sparsity import DynamicReparameterisation, GradualPruning, SparseMomentum

    if training.sparsity == "gradual pruning":
        # a tenth of the run dense, pruned over the next six tenths, the rest to recover; of GNMT, SIGMA prunes the tables too
        every = max(1, training.steps // 100)
        return GradualPruning(
            model, optimizer, density=training.density, begin=10 * every, every=every, prunings=60,
            weights=matrices(model) if training.model == "gnmt" else None, seed=training.seed,
        )  # fmt: skip
    if training.sparsity == "sparse momentum":
        return SparseMomentum(model, optimizer, density=DENSITY, epochs=training.epochs, seed=training.seed)
    return DynamicReparameterisation(model, optimizer, density=DENSITY, every=REALLOCATED, seed=training.seed)


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """Tables, projections and every matrix of the recurrent layers (SIGMA, Sec. II, of GNMT)."""
    return [parameter for parameter in model.parameters() if parameter.dim() == 2]


def small_initialised(model: nn.Module) -> None:
    """Matrices and tables of spread 0.02, as the released BERT begins; the zoo's own begin is torch's.

    What closes a residual branch begins smaller by the root of the number of branches, so that twelve layers learn within a minute.
    """
    branches = [name for name, _ in model.named_modules() if name.endswith(("output.dense", "output_transform", "ffn.3"))]
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            spread = 0.02 / math.sqrt(len(branches)) if name in branches else 0.02
            nn.init.trunc_normal_(layer.weight, std=spread, a=-2 * spread, b=2 * spread)


class Run:
    """A model in training: `step(number)` is one optimizer step on the batch of that number."""

    def __init__(self, training: Training, device: str, start: dict[str, Tensor] | None) -> None:
        torch.manual_seed(training.seed)
        self.training = training
        self.recorded_steps = random_batches(training.epochs, training.steps_per_epoch, training.seed)
        with torch.device(device):
            self.recipe = recipe(training)
            self.model = self.recipe.model()
        if start is not None:
            self._warm_start(start)
        if training.model in ("bert-base", "transformer-324m"):
            small_initialised(self.model)
        # Stand-ins have no end: an epoch is a number of steps, no sample comes twice, and what follows is held out.
        trained, held_out = training.batch * training.steps, training.batch * EVALUATED
        source = training.source(trained + held_out, training.seed, device)
        parts = Part(source=source, first=0, samples=trained), Part(source=source, first=trained, samples=held_out)
        self.batches = Batches(source=parts[0], batch=training.batch, seed=training.seed, device=device)
        self.held_out = Batches(source=parts[1], batch=training.batch, device=device)
        self.optimizer = training.optimizer(self.model)
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: warmed(step, training.steps))
        self.pruning = pruning(training, self.model, self.optimizer)
        self.losses: list[Tensor] = []

    def _warm_start(self, state: dict[str, Tensor]) -> None:
        """The trunk of a detector begins as a trained classifier, its normalisation frozen as it was."""
        body = self.model.get_submodule("backbone.body")
        names = body.state_dict()
        body.load_state_dict({name: value for name, value in state.items() if name in names}, strict=True)

    def step(self, number: int) -> None:
        tensors = self.batches.at(number)
        inputs, targets = tensors[: self.training.inputs], tensors[self.training.inputs :]
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.recipe.loss(self.model(*inputs), *targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIPPED)
        self.optimizer.step()
        if self.pruning is not None:
            self.pruning.step()
            if (number + 1) % self.training.steps_per_epoch == 0:
                self.pruning.end_epoch()
        self.rate.step()
        self.losses.append(loss.detach())

    @torch.no_grad()
    def evaluate(self, *, trained: bool) -> dict[str, float]:
        """Loss and accuracy on held-out batches; in training mode before training, when normalisation knows no statistics yet."""
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        self.model.train(not trained)
        losses, accuracies = [], []
        for tensors in self.held_out:
            inputs, targets = tensors[: self.training.inputs], tensors[self.training.inputs :]
            output = self.model(*inputs)
            losses.append(self.recipe.loss(output, *targets))
            accuracies.append(self.training.accuracy(output, *targets))
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])
        self.model.train()
        return {"loss": float(torch.stack(losses).mean()), "accuracy": float(torch.stack(accuracies).mean())}

    def curve(self) -> list[float]:
        """Mean training loss of each epoch (the last ends with the recorded step)."""
        losses = torch.stack(self.losses).tolist()
        every = self.training.steps_per_epoch
        return [round(sum(part) / len(part), 5) for part in (losses[at : at + every] for at in range(0, len(losses), every))]


def about(run: Run, start: dict[str, float], end: dict[str, float], device: str, seconds: float) -> dict[str, Any]:
    training, optimizer = run.training, run.optimizer
    settings = {key: optimizer.defaults[key] for key in ("lr", "momentum", "betas", "weight_decay") if key in optimizer.defaults}
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {
        "model": training.model,
        "data": run.batches.name,
        "stand_in": True,
        "epochs": training.epochs,
        "steps_per_epoch": training.steps_per_epoch,
        "recorded_steps": run.recorded_steps,
        "batch": training.batch,
        "optimizer": f"{type(optimizer).__name__} {settings}, warm-up and cosine, gradients clipped at norm {CLIPPED:g}",
        "sparsity": training.sparsity and f"{training.sparsity} to {1 - training.density:.0%}",
        "warm_start": training.warm_start,
        "seed": training.seed,
        "start": start,
        "end": end,
        "curve": run.curve(),
        "device": name,
        "torch": torch.__version__,
        "precision": "fp32, TF32 products",
        "seconds": round(seconds, 1),
    }


def densities(masks: Masks) -> dict[str, dict[str, list[float]]]:
    """Of each layer and call, A, G and W at each recorded step: the share of non-zero elements."""
    shares: dict[str, dict[str, list[float]]] = {}
    for step in masks.steps:
        for (layer, call, letter), spec in masks.at(step).specs.items():
            shares.setdefault(f"{layer}/{call}", {}).setdefault(letter, []).append(round(spec.density, 5))
    return shares


def trim(recorded: Path, target: Path, training: Training) -> None:
    """Of each recorded step A and G of the samples kept; W where it has zeros, of the last step alone."""
    masks = Masks.open(recorded)
    writer = MaskWriter(target, {key: value for key, value in masks.metadata.items() if key in ("trainyard", "seed")})
    for step in masks.steps:
        at = masks.at(step)
        for key, spec in at.specs.items():
            if key[2].startswith("W") and (step != masks.steps[-1] or spec.nonzero == spec.elements):
                continue
            if key[2].startswith("W") and training.weights and not key[0].startswith(training.weights):
                continue
            bits, samples = at.bits(key), spec.samples
            if not key[2].startswith("W"):
                samples = samples or tuple(range(training.batch))
                rows_per_sample = bits.shape[0] // len(samples)
                samples, bits = samples[: training.kept], bits[: training.kept * rows_per_sample]
            writer.add(step, key, bits, samples)
    writer.close()
    recorded.unlink()


def train(folder: Path, trainings: tuple[Training, ...], device: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    results: dict[str, Any] = {}
    states: dict[str, dict[str, Tensor]] = {}
    writing: list[Future[None]] = []
    with ThreadPoolExecutor(4) as pool:
        for training in trainings:
            began = time.perf_counter()
            try:
                start = states[training.warm_start] if training.warm_start else None
                run = Run(training, device, start)
                before = run.evaluate(trained=False)
                raw = folder / f"{training.name}.raw"
                masks = record_masks(
                    run.step, run.model, run.recorded_steps, path=raw, samples=training.recorded, seed=training.seed, progress=False
                )
                after = run.evaluate(trained=True)
            except Exception as error:  # the others still train
                say(f"{training.name}: FAILED {type(error).__name__}: {error}")
                results[training.name] = {"error": f"{type(error).__name__}: {error}"}
                continue
            seconds = time.perf_counter() - began
            results[training.name] = {**about(run, before, after, device, seconds), "densities": densities(masks)}
            if training.name == "resnet50":
                states[training.name] = {name: value.detach().clone() for name, value in run.model.state_dict().items()}
            writing.append(pool.submit(trim, raw, folder / f"{training.name}.safetensors.xz", training))
            (folder / "results.json").write_text(json.dumps(results, indent=1))
            say(f"{training.name}: loss {before['loss']:.3f} -> {after['loss']:.3f}, accuracy {before['accuracy']:.3f} -> "
                f"{after['accuracy']:.3f}, {seconds:.0f} s, {seconds / training.steps * 1e3:.0f} ms a step")  # fmt: skip
            say(f"  training loss by epoch {results[training.name]['curve']}")
            del run
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    for written in writing:
        written.result()
    (folder / "results.json").write_text(json.dumps(results, indent=1))
    for file in sorted(folder.iterdir()):
        say(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")


def smoke(trainings: tuple[Training, ...]) -> Iterator[Training]:
    """The same shapes, a few samples and steps: shows that everything runs, learns nothing."""
    for training in trainings:
        yield replace(training, batch=min(training.batch, 4), steps_per_epoch=2, epochs=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("train", "pack"))
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="comma-separated names")
    parser.add_argument("--smoke", action="store_true", help="a few steps of a few samples")
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of an epoch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args()
    if chosen.action == "pack":
        from pack_samples import pack

        pack(chosen.folders)
        return
    names = [name for name in chosen.only.split(",") if name]
    by_name = {training.name: training for training in TRAININGS}
    if unknown := [name for name in names if name not in by_name]:
        parser.error(f"no training is called {', '.join(unknown)} (known: {', '.join(by_name)})")
    trainings = tuple(by_name[name] for name in names or by_name)
    if chosen.smoke:
        trainings = tuple(smoke(trainings))
    trainings = tuple(replace(t, steps_per_epoch=max(1, round(t.steps_per_epoch * chosen.scale))) for t in trainings)
    train(chosen.folders[0], trainings, chosen.device)


if __name__ == "__main__":
    main()
