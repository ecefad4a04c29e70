"""SIGMA: Flex-DPEs (Benes distribution, multipliers, FAN reduction) that hold only the non-zeros of one operand.

In reading order: `array` is the cost of a product in closed form; `dense_tiles` the events of many dense tiles as columns;
`partial_sums` the add latency of dot products that span Flex-DPEs; `flex_dpu` the schedule of concurrent products; `components`
energy and area; `controller` maps bitmaps onto multipliers as in the paper's walk-through; `execution` computes products switch by
switch and adder by adder; `walkthrough` prints a small example.
"""

from trainyard.arrays.sigma.array import Sigma, SigmaCost

__all__ = ["Sigma", "SigmaCost"]
