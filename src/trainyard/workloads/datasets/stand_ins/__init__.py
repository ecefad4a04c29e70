"""Stand-ins: generated data with something to learn, in place of data sets that are not at hand. Each says so in its name.

Sample number i of a seed is the same on every device (up to rounding), because its randomness is a hash of (seed, i), not a
generator's state. Most import torch at the top; features and strokes do without it.
"""
