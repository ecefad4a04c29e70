"""Runs layers through SCALE-Sim 3.0.0 in its own environment: layers as JSON on stdin, cycles and seconds as JSON on stdout."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path

from scalesim.scale_sim import scalesim

CONFIGURATION = """
[general]
run_name = run
[architecture_presets]
ArrayHeight: {rows}
ArrayWidth: {columns}
IfmapSramSzkB: 8192
FilterSramSzkB: 8192
OfmapSramSzkB: 8192
IfmapOffset: 0
FilterOffset: 1000000000
OfmapOffset: 2000000000
Dataflow: {dataflow}
Bandwidth: 10
ReadRequestBuffer: 32
WriteRequestBuffer: 32
[layout]
IfmapCustomLayout: False
IfmapSRAMBankBandwidth: 10
IfmapSRAMBankNum: 10
IfmapSRAMBankPort: 2
FilterCustomLayout: False
FilterSRAMBankBandwidth: 10
FilterSRAMBankNum: 10
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport: false
SparseRep: ellpack_block
OptimizedMapping: false
BlockSize: 8
RandomNumberGeneratorSeed: 40
[run_presets]
InterfaceBandwidth: CALC
UseRamulatorTrace: False
"""

LAYOUT = "Layer,\n" + "layer," + "1," * 24 + "\n"


def run(layer: dict[str, int], rows: int, columns: int, dataflow: str) -> tuple[int, float]:
    """Compute cycles and wall seconds of one layer."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "run.cfg").write_text(CONFIGURATION.format(rows=rows, columns=columns, dataflow=dataflow))
        (place / "layout.csv").write_text(LAYOUT)
        (place / "topology.csv").write_text(f"Layer, M, N, K,\nlayer, {layer['M']}, {layer['N']}, {layer['K']},\n")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            peer = scalesim(
                save_disk_space=True,
                verbose=False,
                config=str(place / "run.cfg"),
                topology=str(place / "topology.csv"),
                layout=str(place / "layout.csv"),
                input_type_gemm=True,
            )
            begun = time.perf_counter()
            peer.run_scale(top_path=folder)
            seconds = time.perf_counter() - begun
            report = peer.runner.single_layer_sim_object_list[0].get_compute_report_items()
    return int(report[1]), seconds


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    answers = []
    for layer in asked["layers"]:
        for dataflow in asked["dataflows"]:
            cycles, seconds = run(layer, asked["rows"], asked["columns"], dataflow)
            answers.append({"layer": layer["name"], "dataflow": dataflow, "cycles": cycles, "seconds": seconds})
    json.dump(answers, sys.stdout)
