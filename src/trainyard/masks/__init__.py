"""Where the zeros are.

In reading order: `recorded` is the file of a real run, `generated` made-up zeros, `densities` shares alone, `named` either by text;
`views` the bits behind an operand, `streams` (with `stream_geometry`, `gather`) packed for a dot-product tile, `contraction`,
`operand_pairs` and `row_counts` what fabrics count; `shards` a device's own part, `recurrent_masks` time steps, `dma` what a
compressing DMA engine saves. Recording stands beside capture (`workloads.recording`).
"""
