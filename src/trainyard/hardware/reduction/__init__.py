"""Reduction networks: `adder_trees` has SIGMA's FAN, MAERI's ART, the linear chain and temporal sums."""
