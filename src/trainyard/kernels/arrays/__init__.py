"""Compiled loops of arrays: `flex_dpe` and `partial_sums` (SIGMA), `promotion` and `promotion_words` (TensorDash), `merging`
(OuterSPACE), `packing` (packed systolic), `passes` (Eyeriss v2), `rivals` (EIE, SCNN), `dealing` (blocks on equal units).
"""
