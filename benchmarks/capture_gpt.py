"""Capture of a 26 B-parameter GPT training step, beside torch's own FLOP counter on the same step.

    python benchmarks/capture_gpt.py            # prints both, their ratio, and whether the bounds hold
    python benchmarks/capture_gpt.py --json -   # the same as one JSON object

Each side runs in a process of its own, on meta, batch 8 x 1024 tokens, with AdamW. Ours makes a rebatchable Step, so it runs the
model at two batch sizes; the counter runs it once and keeps three numbers. Building the model is not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

BOUND_S = 6.0
BOUND_MB = 500.0
BATCH, TOKENS, LAYERS, WIDTH, HEADS, WORDS = 8, 1024, 56, 6144, 48, 50257


def build() -> Any:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            batch, length, _ = x.shape
            parts = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    with torch.device("meta"):
        return Gpt()


def loss(output: Any, targets: Any) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def measure(side: str) -> dict[str, float]:
    import torch

    base = _peak_mb()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.empty(BATCH, TOKENS, dtype=torch.long, device="meta")
    if side == "ours":
        from trainyard.workloads.capture import capture

        start = time.perf_counter()
        step = capture(model, tokens, tokens.clone(), loss=loss, optimizer=optimizer, name="gpt")
        seconds, macs, ops = time.perf_counter() - start, step.macs, len(step)
        assert step.rebatchable, step.source
    else:
        from torch.utils.flop_counter import FlopCounterMode

        from trainyard.workloads.capture.attention.outside import attention_of

        start = time.perf_counter()
        with attention_of("cuda"), FlopCounterMode(display=False) as counter:
            loss(model(tokens), tokens).backward()
            optimizer.step()
        seconds, macs, ops = time.perf_counter() - start, counter.get_total_flops() // 2, 0
    parameters = sum(p.numel() for p in model.parameters())
    return {"seconds": seconds, "peak_mb": _peak_mb(), "torch_mb": base, "macs": macs, "ops": ops, "parameters": parameters}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # Linux counts in KiB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("ours", "counter"), help="measure one side in this process (used by the script itself)")
    parser.add_argument("--json", metavar="-", help="print one JSON object")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side)))
        return 0
    rows: dict[str, dict[str, float]] = {}
    for side in ("ours", "counter"):
        done = subprocess.run([sys.executable, __file__, "--side", side], capture_output=True, text=True, check=True)
        rows[side] = json.loads(done.stdout.splitlines()[-1])
    ours, counter = rows["ours"], rows["counter"]
    held = ours["seconds"] <= BOUND_S and ours["peak_mb"] <= BOUND_MB and ours["macs"] == counter["macs"]
    result = {
        **rows,
        "ratio": ours["seconds"] / counter["seconds"],
        "bounds": {"seconds": BOUND_S, "peak_mb": BOUND_MB},
        "held": held,
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"GPT of {ours['parameters'] / 1e9:.1f} B parameters, batch {BATCH} x {TOKENS} tokens, AdamW, shapes only")
        print(f"  capture, two batch sizes   {ours['seconds']:6.2f} s   peak {ours['peak_mb']:5.0f} MB   {ours['ops']:.0f} ops")
        print(f"  FlopCounterMode, one       {counter['seconds']:6.2f} s   peak {counter['peak_mb']:5.0f} MB")
        print(f"  importing torch alone                 peak {ours['torch_mb']:5.0f} MB (a CUDA build takes about 600)")
        print(
            f"  ratio {result['ratio']:.2f}; MACs {ours['macs']:.4e}, {'equal' if ours['macs'] == counter['macs'] else 'DIFFERENT'}"
        )
        print(f"  bounds {BOUND_S:.0f} s and {BOUND_MB:.0f} MB {'hold' if held else 'are BROKEN'}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
