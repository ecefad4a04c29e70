"""Mechanisms drawn on small examples: `sigma`, `tensordash`, `igo`, on a `canvas` of cells and lines; `page` writes one as HTML."""
