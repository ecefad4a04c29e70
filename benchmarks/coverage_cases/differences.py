"""Why the FLOPs of a capture differ from those that torch counts, case by case."""

from __future__ import annotations

REASONS: dict[tuple[str, str], str] = {}
