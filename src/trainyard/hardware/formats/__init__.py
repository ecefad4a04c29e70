"""Formats of stored data: `bitmaps` (one packed bit per element), `matrices` (formats of sparse matrices), `structured` (n:m
sparsity), `zero_compression` (that of a compressing DMA engine), `qsgd` (quantised gradients), `bank_layout` (tensors in banked
memories, with transposers).
"""
