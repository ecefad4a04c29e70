"""Machines by name, one file per paper or vendor: a preset is the paper's table, with the source on each number's line.

`sigma` (with the TPU and the rivals), `tensordash`, `igo` (the NPUs), `mcdla` (nodes, planes, clusters), `direct` (PIM), `gpus`,
`chips` (TPUs, Gaudi 2, Trainium).
"""
