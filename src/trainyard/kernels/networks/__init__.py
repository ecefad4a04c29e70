"""Compiled loops of networks: `adder_trees`, `benes`, `benes_switches`, `crossbar`."""
