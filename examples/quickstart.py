"""Five minutes: your own model, its training step captured, run on three machines."""

import torch
from torch import nn

import trainyard as ty

model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
    nn.Flatten(), nn.Linear(1024, 10),
)  # fmt: skip
images, labels = torch.randn(32, 3, 64, 64), torch.randint(10, (32,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

# 1. What has to be computed: forward, loss, backward and update. Shapes only; the model is left as it was.
step = ty.capture(model, images, labels, loss=nn.functional.cross_entropy, optimizer=optimizer)

# 2. A machine: an array with a scratchpad, DRAM and a clock.
chip = ty.Accelerator(array=ty.arrays.Systolic(rows=64, columns=64), scratchpad="2 MiB", dram="50 GB/s", clock="800 MHz")

# 3. What it costs, per layer and phase.
result = ty.run(step, on=chip)
result.table()
print(result.explain())

# 4. The same step elsewhere, and at another batch size without touching torch again.
ty.compare(step.rebatch(64), on=[chip, "npu", "tpu", "h200"]).table()
