"""The sparse accelerators that SIGMA's paper compares with (Sec. VI), each after its own paper.

In reading order: `weights_and_inputs` is a product as an inference engine sees it, `expectation` the expected cycles of random
zeros; then one file for each accelerator: `eie`, `cambricon_x`, `scnn` (with `scnn_execution`), `outerspace`, `eyeriss_v2`,
`packed_systolic`. Each counts cycles and events of a product (`cost`) and computes small ones with real numbers (`execute`).
"""
