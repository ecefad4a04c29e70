"""Reduction networks as circuits: the forwarding adder network of SIGMA (`fan`), MAERI's augmented reduction tree (`art`), a chain.

`network` has what they share: ports, random groupings, and what `hardware.reduction.adder_trees` expects. Each network is a routing
circuit (vecIDs in, select bits out, used once for each fold), a register for the select bits, and the tree of adders itself; the
two circuits are components of their own, so that their gates are counted apart.
"""
