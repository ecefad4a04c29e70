"""A small language-model trunk trained plainly and under a memory budget: the same losses, a part of the activations.

On a GPU the budget is of the device's memory and activations go to page-locked host memory; on a CPU it is of the activations held,
and they go to a file. The tokens are made up: each is the sum of the two before it, modulo the vocabulary.
"""

import torch
from torch import Tensor, nn

import trainyard as ty

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
WIDTH, DEPTH, LENGTH, BATCH, WORDS, STEPS = (1024, 8, 1024, 16, 512, 16) if GPU else (64, 3, 32, 8, 32, 12)


class Trunk(nn.Module):
    """Token embedding, pre-norm encoder layers with a causal mask, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(DEPTH)
        )
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        return self.out(x)


def sequences(step: int) -> Tensor:
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    for place in range(2, LENGTH + 1):
        tokens[:, place] = (tokens[:, place - 1] + tokens[:, place - 2]) % WORDS
    return tokens.to(DEVICE)


def train(model: nn.Module) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        tokens = sequences(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trunk() -> nn.Module:
    torch.manual_seed(0)
    return Trunk().to(DEVICE)


def main() -> None:
    plain = train(trunk())
    model = trunk()
    with ty.live.overlay(model, budget="6 GB" if GPU else "900 kB", store="pinned" if GPU else "disk") as pages:
        paged = train(model)
    print(pages.report(), end="\n\n")
    print("step    plain  within the budget")
    for step in range(0, STEPS, STEPS // 4):
        print(f"{step:4}  {plain[step]:7.4f}  {paged[step]:17.4f}")


if __name__ == "__main__":
    main()
