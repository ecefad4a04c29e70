"""Coverage-guided fuzzing of the ONNX reader with atheris (pip install atheris): all but a step or a user's error is a fault.

    python scripts/fuzz_onnx.py corpus/ -max_total_time=600

The corpus may start with any .onnx files; without one it begins with a small graph of its own.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["trainyard.workloads.formats", "trainyard.workloads.formats.backward", "trainyard.workloads.formats.gradients"]
):
    from trainyard.errors import TrainyardError
    from trainyard.workloads.formats.onnx.model import read_onnx

FILE = Path(tempfile.mkdtemp()) / "model.onnx"


def one(content: bytes) -> None:
    """A step that can be asked for its sizes, or an error that says what is wrong."""
    FILE.write_bytes(content)
    try:
        step = read_onnx(FILE, batch=2)
        assert step.macs >= 0
        assert step.digest
    except TrainyardError:
        return


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
