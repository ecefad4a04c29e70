"""Compiled loops over masks: `bitmaps` (packed matrices), `streams` (packed streams of a dot-product tile), `windows` (counts of a
convolution's windows).
"""
