"""SIGMA: Flex-DPEs (Benes distribution, multipliers, FAN reduction) that hold only the non-zeros of one operand.

`array.py` says what a product costs; `controller.py` maps bitmaps as the paper's walk-through does; `execution.py` computes it,
switch by switch and adder by adder; `flex_dpu.py` runs several products side by side.
"""

from trainyard.arrays.sigma.array import Sigma, SigmaCost

__all__ = ["Sigma", "SigmaCost"]
