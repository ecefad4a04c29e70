"""Recommenders, graphs and linear models."""
