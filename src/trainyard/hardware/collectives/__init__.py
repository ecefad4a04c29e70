"""Collectives: how long they take and what every wire carries.

`fabric` is a node as collectives see it; `on_graph` the entry; `ring` (with `ring_timing`), `double_tree`, `switched`,
`hierarchical` the algorithms; `groups` collectives between some of the devices.
"""
