"""Reduction networks: `adder_trees` has FAN, ART, the linear chain and temporal sums."""
