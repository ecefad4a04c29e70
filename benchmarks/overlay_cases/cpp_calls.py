"""What a compiled step of ConvNeXt-T takes with its calls in Python and in C++, on a GPU.

python benchmarks/overlay_cases/cpp_calls.py        prints a row for each, as JSON
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

IMAGES, STEPS = 32, 30


def measured(cpp: bool) -> dict[str, Any]:
    """Seconds until the second step is done, milliseconds of the host and of a step (the least of some), and the peak."""
    import torch
    import torchvision
    from torch._inductor import config
    from torch.nn import functional as F

    config.cpp_wrapper = cpp
    torch.manual_seed(0)
    model = torchvision.models.convnext_tiny(weights=None, stochastic_depth_prob=0.0).cuda().bfloat16()
    images = torch.randn(IMAGES, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    classes = torch.randint(1000, (IMAGES,), device="cuda")
    compiled, begun, host, step = torch.compile(model, dynamic=False), time.perf_counter(), [], []
    for number in range(STEPS + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.zero_grad(set_to_none=True)
        F.cross_entropy(compiled(images).float(), classes).backward()
        host.append(1e3 * (time.perf_counter() - start))
        torch.cuda.synchronize()
        step.append(1e3 * (time.perf_counter() - start))
        if number == 1:
            first_s = time.perf_counter() - begun
            torch.cuda.reset_peak_memory_stats()
    times = {"host_ms": min(host[2:]), "step_ms": min(step[2:]), "median_step_ms": statistics.median(step[2:])}
    return {"cpp": cpp, "first_s": first_s, **times, "gib": torch.cuda.max_memory_allocated() / 2**30}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1] == "cpp")))
    else:
        for calls in ("python", "cpp"):  # the setting is read once in a process
            subprocess.run([sys.executable, __file__, calls], check=True)
