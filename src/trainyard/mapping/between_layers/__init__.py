"""What stays on chip between Works: tensors that go from their producer to their consumers without a way through DRAM.

In reading order: `accesses` says which Work reads and writes which tensor, and what may be kept between two of its accesses (a
gap); `residency` says what the gaps that are kept save each Work, and what room they take; `search` chooses the gaps. `slices` are
blocks of Works that run for a part of the batch at a time. `rows` says which rows of an image a Work needs, `row_bands` which rows
each band of a block computes and keeps, `row_blocks` are blocks of Works in such bands. `block_search` chooses among all
blocks. Devices provide costs; nothing here knows a machine.
"""

from __future__ import annotations

from trainyard.lazy import exports

__getattr__ = exports(__name__)
