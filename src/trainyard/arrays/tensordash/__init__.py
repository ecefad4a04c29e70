"""TensorDash, by the paper's own words: staging buffers and promotion in front of the multipliers of a Tensor Core.

In reading order: `patterns` are the promotion options and scheduler levels; `scheduler` is the hardware scheduler (MS, AS);
`element` the processing element and its tile, with real values; `groups` the cycles of row groups from masks and densities; `array`
the cost of a product; `components` energy and area; `footprints` storage; `search` looks for promotion patterns; `walkthrough`
prints an example. A new pattern is a row of the tables in `patterns`.
"""

from trainyard.arrays.tensordash.array import TensorDash

__all__ = ["TensorDash"]
