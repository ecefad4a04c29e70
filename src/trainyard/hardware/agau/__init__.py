"""AGAU, the atomic gradient accumulation unit: `unit`, its `parameter_cache`, and the `coherence` protocol between caches."""
