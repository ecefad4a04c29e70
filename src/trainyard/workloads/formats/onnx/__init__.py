"""ONNX models: the forward pass is in the file, the training step is derived from it.

In reading order: `model` is the entry; `graph` reads the file, `constants` what is known of shapes, `patterns` puts nodes together;
`trace` writes ops down by the `rules` of `products`, `layers`, `layout` and `recurrent`.
"""
