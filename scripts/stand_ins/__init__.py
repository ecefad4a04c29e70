"""Stand-ins: generated data with something to learn, in place of data sets that are not at hand. The name of each says so.

`train_samples.py` trains on them. Sample number i of a seed is the same on every device (up to rounding), because its randomness is
a hash of (seed, i) (`randomness`), not a generator's state.
"""
