"""Writes docs/samples.md from the shipped samples: what was trained, for how long, what it learned, where its zeros are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "src" / "trainyard" / "papers" / "samples"
PAGE = ROOT / "docs" / "samples.md"

INTRODUCTION = """# Masks of real training runs, on stand-in data

`trainyard reproduce tensordash` needs the zeros of models in training. TensorDash's authors traced theirs on ImageNet, COCO,
GLUE, SNLI, MovieLens 20M and WikiText-2, of one random batch of every epoch. Those data sets cannot be shipped. What is shipped
was really trained, in the shapes of the zoo's models, on **stand-ins**: generated data with something to learn
(`scripts/stand_ins`). The zeros are those of these runs, not of the paper's. The runs are short: they show
learning, not convergence.

```
python scripts/train_samples.py train FOLDER      # all of them; about ten minutes on one H200
python scripts/train_samples.py pack FOLDER       # chooses what is shipped, checks it against the Steps, writes this page
```

To use a data set you have, write a training function over it (torchvision and torchtext have loaders) and record it:
`trainyard record mine.py:train -o run.safetensors.xz --epochs 8 --steps-per-epoch 1000 --samples 1`.

## What was trained

Loss and accuracy are of samples that training did not see, before and after. An epoch is a number of steps: stand-ins have no
end, and no sample comes twice. Accuracy is the share of right classes, words or likes; of Mask R-CNN, of regions on an object
whose kind is named.
"""

FILES = """
## What is in the files

`src/trainyard/papers/samples/tensordash/`, {size:.1f} MB in all:

- `NAME.safetensors.xz`: masks of one batch of the last epoch: A and G of the samples kept, of every layer; W where it has zeros.
  They fit `zoo.load(NAME, batch=samples kept)`. `mask-rcnn` has smaller pictures and fewer regions than the zoo's:
  `mask-rcnn.step.json.gz` is its Step.
- `NAME-epochs.safetensors.xz`: A and G of a few layers at one random batch of every epoch.
- `densities.json`: of every run what is said above, and of every layer the share of non-zeros of A, G and W at every epoch, over
  more samples than were kept.

The metadata of a file says model, data, epochs, batch, optimizer, recipe, losses, seed, device, and what was left out. A W without
a mask is dense, except those that `left_out` names: of a pruned network not every W is shipped.

| file | kB | samples kept | layers | training steps |
|---|---:|---:|---:|---|
"""

REMARKS = """
## What to know about them

- **Dropout counts.** VGG-16, SqueezeNet, SNLI, BERT, show-and-tell and GCN train with dropout: its zeros are in A and G.
- **Padding.** Sentences and captions are padded. Padded words have no gradient: whole rows of G are zero, and in SNLI whole rows
  of A. Their share follows the assumed lengths of the sentences.
- **Batch normalisation** leaves G of ResNet-50 dense. Mask R-CNN's is frozen, so that its G has the zeros of the ReLUs.
- **Pruned networks** keep a tenth of their weights; small layers keep more of theirs, so that the mean over layers is higher.
- **Mask R-CNN** began with the trunk of the `resnet50` run. Its loss falls, but it does not name the 90 kinds of objects yet.
- **show-and-tell** learns its encoder at a slower rate than the rest: at one rate the gates of its LSTM saturated, and no gradient
  came back to the picture.
- `snli` drew its held-out samples from another seed.
- **Runs that were made again** because they had learned little or nothing, not for their zeros: `vgg16`, the three ResNets (first
  on 1000 classes), `show-and-tell` (saturated) and `ncf` (its held-out set had other tastes than its training set). With the first
  ones of the last five, TensorDash's mean speedup was 1.75 as well; NCF's was 1.30 and is 1.16, img2txt's 1.87 and is 1.82.
- `squeezenet` learns 1000 classes, the other classifiers 100 (palette and texture): what a short run can learn.
"""

SIGMA = """
# SIGMA's models, pruned while they train

`trainyard reproduce sigma` wants weights as SIGMA has them: pruned slowly in training, by M. Zhu and S. Gupta's rule
(`trainyard.live.sparsity.GradualPruning`), ResNet-50 to 70 %, the Transformer to 80 %, GNMT to 90 %. The paper trained on LM1B and
WMT German-English (of ResNet-50 it does not say). Here stand-ins took their place again, and there is **one run of each**: how
much another seed would change is not known. Weights are pruned from a tenth of the run on, over six tenths of it, every layer
alike; of GNMT all matrices, tables included, as the paper does.
"""

SIGMA_FILES = """
## What is in these files

`src/trainyard/papers/samples/sigma/`, {size:.1f} MB in all:

- `NAME-pruned.safetensors.xz`: masks of a few layers at the last epoch that fit `zoo.load(NAME, batch=samples kept)`. Of GNMT A
  and G of every layer are there, of the others those of a few; W of the layers that the table names. What is missing is named in
  `left_out`.
- `densities.json`: of every run what is said above, and of every layer and letter the share of non-zeros at every recorded step,
  over more samples than were kept.
- `gpu.json`: times of one {device} (torch {torch}), by one run of `scripts/measure_products.py`: the products of
  SIGMA's suite in four element types and, 50 and 80 % sparse, in CSR (of each the fastest of five queues), and where the time of
  six training steps goes.

| file | kB | samples kept | layers | with W | training step |
|---|---:|---:|---:|---|---|
"""

SIGMA_REMARKS = """
## What to know about these

- **Data.** The Transformer's text is the stand-in that GCN has for WikiText-2, here of 31999 words, for LM1B.
- **GNMT's recurrent layers** are recorded as sequences (`A.input`, `A.output`, `G.output`) and matrices (`W.weight_ih_l0`).
  Gradients of gates are not recorded. Those of its attention cell (`decoder.bottom`) are, its matrices are not: they were pruned
  as all others were. `decoder.attention.linear_att` left a G without elements of a sample: it is in `densities.json` alone.
- **Zeros of G in GNMT** are of padding (half of the target words), of dropout, and of the attention's pruned vector, which passes
  nothing back where it is zero. Its tables are pruned, so that A of the first encoder layer is sparse too.
- **The Transformer's** A is dense but behind its ReLUs: 16 to 41 % non-zero, the least in the last layers. G has a tenth of zeros
  from dropout, and those of the ReLUs.
- **Not pruned:** ResNet-50's first convolution and the Transformer's softmax. `densities.json` says of each layer.
- **The runs are short** (one to four minutes): they learn under pruning, and none has converged.
"""


def mean(values: Sequence[float]) -> str:
    return f"{100 * sum(values) / len(values):.0f} %" if values else ""


def column(densities: Mapping[str, Mapping[str, Sequence[float]]], letter: str, step: int) -> list[float]:
    """Of every layer that has the letter at that epoch; of a recurrent layer, all that begins with it."""
    columns = [shares for layer in densities.values() for name, shares in layer.items() if name[0] == letter]
    return [values[step] for values in columns if len(values) > (step if step >= 0 else 0)]


def percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.1%}"


def optimizer(text: str) -> str:
    """Its name and rate."""
    kind, _, rest = text.partition(" ")
    rate = re.search(r"'lr': ([0-9.e-]+)", rest)
    return f"{kind}, rate {rate[1]}" if rate else kind


def trained(results: Mapping[str, Any]) -> list[str]:
    lines = [
        "| run | data | batch | epochs x steps | optimizer | loss | accuracy | seconds | device |",
        "|---|---|---:|---:|---|---|---|---:|---|",
    ]
    for name, run in results.items():
        recipe = f"; {run['sparsity']}" if run["sparsity"] else ""
        start, end = run["start"], run["end"]
        lines.append(
            f"| {name} | {run['data'].removeprefix('stand-in: ')} | {run['batch']} | {run['epochs']} x {run['steps_per_epoch']} "
            f"| {optimizer(run['optimizer'])}{recipe} | {start['loss']:.2f} to {end['loss']:.2f} "
            f"| {percent(start['accuracy'])} to {percent(end['accuracy'])} | {run['seconds']:.0f} | {run['device']} |"
        )
    return lines


def densities(results: Mapping[str, Any], title: str) -> list[str]:
    lines = [
        "",
        f"## {title}",
        "",
        "Mean over layers, at the first, the fourth and the last epoch; training loss of these epochs beside it.",
        "",
        "| run | loss by epoch | A | G | W |",
        "|---|---|---|---|---|",
    ]
    for name, run in results.items():
        cells = [", ".join(mean(column(run["densities"], letter, step)) for step in (0, 3, -1)) for letter in "AGW"]
        losses = ", ".join(f"{run['curve'][step]:.2f}" for step in (0, 3, -1))
        lines.append(f"| {name} | {losses} | {' | '.join(cells)} |")
    return lines


def files(folder: Path, *, weights: bool = False) -> list[str]:
    """A line for each file of masks; with the layers whose W is there, where asked."""
    from trainyard.masks.recorded import Masks

    lines = []
    for file in sorted(folder.glob("*.safetensors.xz")):
        masks = Masks.open(file)
        specs = masks.at(masks.steps[-1]).specs
        samples = next(len(spec.samples) for key, spec in specs.items() if spec.samples and not key[2].startswith("W"))
        steps = ", ".join(map(str, masks.steps))
        pruned = sorted({key[0] for key in specs if key[2].startswith("W")})
        cell = f" {', '.join(pruned)} |" if weights else ""
        size = file.stat().st_size / 1e3
        lines.append(f"| {file.name} | {size:.0f} | {samples} | {len({key[0] for key in specs})} |{cell} {steps} |")
    return lines


def megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def write() -> None:
    dense, pruned = SAMPLES / "tensordash", SAMPLES / "sigma"
    results, sparse = (json.loads((folder / "densities.json").read_text()) for folder in (dense, pruned))
    measured = json.loads((pruned / "gpu.json").read_text())
    parts = [
        INTRODUCTION,
        *trained(results),
        *densities(results, "Share of non-zeros"),
        FILES.format(size=megabytes(dense)).rstrip("\n"),
        *files(dense),
        REMARKS.rstrip("\n"),
        SIGMA,
        *trained(sparse),
        *densities(sparse, "Share of non-zeros, pruned"),
        SIGMA_FILES.format(size=megabytes(pruned), device=measured["device"], torch=measured["torch"]).rstrip("\n"),
        *files(pruned, weights=True),
        SIGMA_REMARKS.rstrip("\n"),
    ]
    PAGE.write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    write()
