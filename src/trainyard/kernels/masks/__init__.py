"""Compiled loops over packed zero masks: `bitmaps`, `streams`, `windows`."""
