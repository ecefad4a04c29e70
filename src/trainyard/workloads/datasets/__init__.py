"""Data sets to train on: the published ones in the formats they come in, from a local path, and stand-ins that are generated.

One file per data set; nothing is downloaded. A source says its name, whether it is a stand-in, how many samples it has, and takes
samples by number; `Batches` deals them out, the same under the same seed. A new data set is one file with such a source.
"""
