"""Compiled loops of networks: `adder_trees` (reduction), `benes` (routing) and `benes_switches` (settings and values), `crossbar`
(messages of DIRECT's hierarchy).
"""
