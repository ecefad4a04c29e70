"""Recommenders (ncf, dlrm) and a linear model (linear)."""
