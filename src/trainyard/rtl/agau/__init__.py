"""DIRECT's AGAU in registers and gates, generated from the simulator's `hardware.agau.unit.Agau`.

In reading order: `reduction_tree` is the tree of SIMD adders with its averaging stage, `accumulation` the unit around it, which
brings contributions into the tree in rounds and keeps partial sums between them; `parameter_cache` is the cache's side of the
coherence protocol, `cache_traffic` makes its inputs and says what the simulator expects of them.
"""
