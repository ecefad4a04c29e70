"""Which elements of a step's tensors are zero: sources of masks, and what arrays and DMA engines compute from them.

In reading order. Sources: `recorded` reads the file of a real training run, `generated` draws masks at random, `densities` has
shares of zeros without positions, `named` opens the first two from a command-line text.
One operand: `lookup` finds the mask of a product's operand (`recurrent_masks` those of an unrolled recurrent layer), `views` gives
its bits as a matrix, `row_counts` the non-zeros of its rows or columns, `streams` (with `stream_geometry` and `gather`) its bits
in the order in which a dot-product tile reads them.
Two operands: `contraction` counts where non-zeros of both meet along K, `operand_pairs` has the bitmaps of both.
A step: `shards` cuts the masks of one device's share, `dma` says how small a compressing DMA engine makes each tensor.
Recording lives in `workloads.recording`, next to capture.
"""
