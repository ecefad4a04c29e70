"""`make demo`: a model of one's own and ResNet-50 on three machines, a table each and an HTML report of both."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import trainyard as ty

MACHINES = ["tpu", "npu", "h200"]
OUT = Path("out")


class Tagger(nn.Module):
    """A user's model: words in, a tag for each out."""

    def __init__(self, words: int = 20_000, width: int = 256, tags: int = 17) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=1024, batch_first=True)
        self.head = nn.Linear(width, tags)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.words(tokens))).transpose(1, 2)


def captured() -> ty.Step:
    model = Tagger()
    tokens, tags = torch.randint(20_000, (16, 64)), torch.randint(17, (16, 64))
    optimizer = torch.optim.Adam(model.parameters())
    return ty.capture(model, tokens, tags, loss=nn.functional.cross_entropy, optimizer=optimizer, name="tagger")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for step in (captured(), ty.zoo.load("resnet50", batch=8)):
        comparison = ty.compare(step, on=MACHINES)
        comparison[0].table(top=12)
        comparison.table()
        report = OUT / f"{step.name}.html"
        comparison.to_html(report)
        print(f"report: {report}\n")


if __name__ == "__main__":
    main()
