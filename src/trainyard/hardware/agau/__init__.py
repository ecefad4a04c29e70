"""AGAU, DIRECT's atomic gradient accumulation unit: `unit` is the reduction tree with its cycles, energy and area; `coherence` the
protocol of one line between parameter caches; `parameter_cache` the caches of all clusters, timed.
"""
