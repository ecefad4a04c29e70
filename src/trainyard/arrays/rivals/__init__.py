"""The sparse accelerators that SIGMA's paper compares with (Sec. VI), each by its own paper.

`sides` is what they share: a product as an inference engine sees it. `eie`, `scnn` (with `scnn_execution`), `outerspace`,
`eyeriss_v2`, `packed_systolic`, `cambricon_x`. Each also executes small products with real numbers.
"""
