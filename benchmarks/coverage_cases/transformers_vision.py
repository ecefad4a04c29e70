"""Vision and multimodal models of transformers: rows of coverage_cases.transformers."""

from coverage_cases.transformers import Row

ROWS: dict[str, Row] = {}
