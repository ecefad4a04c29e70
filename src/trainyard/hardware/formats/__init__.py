"""How numbers are stored: `matrices` (sparse formats), `bitmaps` (packed), `zero_compression` (a DMA engine's), `structured` (n:m),
`numbers` (bf16 to fp8), `qsgd` (quantised gradients), `bank_layout` (tensors in banked memories).
"""
