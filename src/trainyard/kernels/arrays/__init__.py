"""Compiled loops of arrays: `flex_dpe` (SIGMA), `promotion` and `promotion_words` (TensorDash), the rivals' loops."""
