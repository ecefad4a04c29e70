"""Data to train on: sources of samples, and the batches drawn from them. Nothing is downloaded.

- batches: `Source` (the protocol), `Part` (a range of samples), `Batches` (an order per epoch, drawn from the seed)
- digits: handwritten digits, from scikit-learn or drawn by `strokes`
- features: generated feature vectors of two classes, in place of YFCC100M-HNfc6
- streams: one random generator per sample number

A new data set is one file with a class that satisfies `Source`.
"""
