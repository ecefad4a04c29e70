"""Compiled loops of PageRank and the heat equation; their plain-Python twins stand in the tests."""
