"""ONNX models: the forward pass is in the file, the training step is derived from it.

In reading order: `model` is the entry; `graph` reads the file, `constants` folds constants, `patterns` fuses nodes;
`trace` collects ops by the `rules` of `products`, `layers`, `layout` and `recurrent`.
"""
