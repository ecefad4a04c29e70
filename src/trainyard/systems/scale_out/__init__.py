"""Hundreds of devices: message passing between nodes, switched planes, plain replicas.

`cluster` (network cards), `plane` over `switch_tree` with `switched_collectives`, `replicas` (copies of a device on a ring).
"""
