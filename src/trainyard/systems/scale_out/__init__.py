"""Many devices: replicas on a ring, message passing between nodes, switched planes.

In reading order: `replicas` (copies of a device on a ring), `cluster` (nodes with network cards), `plane` (switches that connect
the devices of many nodes), `switch_tree` (their shape), `switched_collectives` (collectives on them).
"""
