"""ZigZag's DRAM bytes of convolutions, for `benchmarks/mapping.py`: runs in an environment that has the extra `zigzag`.

Reads {"sram_bytes": ..., "rows": ..., "columns": ..., "layers": [...]} from the standard input. The machine has the room of our
resident tiles as one SRAM for all operands, one weight and one sum in each cell, input channels along the rows and output channels
along the columns. The energy of a DRAM access is far above all others, so that the least energy is the least DRAM traffic.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
from importlib.metadata import version
from typing import Any

WORD_BITS = 64


def _port(name: str, kind: str, bits: int, allocation: list[str]) -> dict[str, Any]:
    return {"name": name, "type": kind, "bandwidth_min": 8, "bandwidth_max": bits, "allocation": allocation}


def _memory(bits: int, energy: float, operands: list[str], ports: list[dict[str, Any]], served: list[str]) -> dict[str, Any]:
    return {
        "size": bits, "r_cost": energy, "w_cost": energy, "area": 0, "latency": 1, "operands": operands, "ports": ports,
        "served_dimensions": served,
    }  # fmt: skip


def accelerator(asked: dict[str, Any]) -> dict[str, Any]:
    every = ["I1, fh", "I1, tl", "I2, fh", "I2, tl", "O, fh", "O, tl", "O, fl", "O, th"]
    both = ["D1", "D2"]
    sums = [_port("r_port_1", "read", 32, ["O, tl"]), _port("r_port_2", "read", 32, ["O, th"]),
            _port("w_port_1", "write", 32, ["O, fh"]), _port("w_port_2", "write", 32, ["O, fl"])]  # fmt: skip
    weight = [_port("r_port_1", "read", 8, ["I2, tl"]), _port("w_port_1", "write", 8, ["I2, fh"])]
    reads, writes = ["I1, tl", "I2, tl", "O, tl", "O, th"], ["I1, fh", "I2, fh", "O, fh", "O, fl"]
    sram = [_port("r_port_1", "read", 2**16, reads), _port("w_port_1", "write", 2**16, writes)]
    return {
        "name": "resident",
        "memories": {
            "weight": _memory(8, 0.001, ["I2"], weight, []),
            "sum": _memory(32, 0.001, ["O"], sums, []),
            "sram": _memory(8 * int(asked["sram_bytes"]), 0.01, ["I1", "I2", "O"], sram, both),
            "dram": _memory(10**13, 1000.0, ["I1", "I2", "O"], [_port("rw_port_1", "read_write", WORD_BITS, every)], both),
        },
        "operational_array": {"unit_energy": 0.0, "unit_area": 1, "dimensions": both, "sizes": [asked["columns"], asked["rows"]]},
    }


def mapping(asked: dict[str, Any]) -> list[dict[str, Any]]:
    return [{
        "name": "default", "spatial_mapping": {"D1": [f"K, {asked['columns']}"], "D2": [f"C, {asked['rows']}"]},
        "memory_operand_links": {"O": "O", "W": "I2", "I": "I1"},
    }]  # fmt: skip


def layer(number: int, body: dict[str, Any]) -> dict[str, Any]:
    height, width = body["size"]
    taps, stride, padding = body["kernel"], body["stride"], body["padding"]
    out = [(extent + 2 * padding[axis] - taps[axis]) // stride[axis] + 1 for axis, extent in enumerate((height, width))]
    return {
        "id": number, "name": body["name"], "operator_type": "Conv",
        "equation": "O[b][k][oy][ox]+=W[k][c][fy][fx]*I[b][c][iy][ix]",
        "dimension_relations": [f"ix={stride[1]}*ox+1*fx", f"iy={stride[0]}*oy+1*fy"],
        "loop_dims": ["B", "K", "C", "OY", "OX", "FY", "FX"],
        "loop_sizes": [body["batch"], body["out_channels"], body["in_channels"], *out, *taps],
        "operand_precision": {"W": 8, "I": 8, "O": 32, "O_final": 8},
        "operand_source": {},
        "pr_loop_dims": ["IX", "IY"], "pr_loop_sizes": [width, height],
        "padding": [[padding[1], padding[1]], [padding[0], padding[0]]],
    }  # fmt: skip


def dram_bytes(evaluation: Any) -> dict[str, float]:
    """Bytes that cross the DRAM's pins, by operand."""
    from zigzag.datatypes import LayerOperand
    from zigzag.hardware.architecture.memory_port import DataDirection
    from zigzag.mapping.data_movement import DataMoveAttr

    moved: dict[str, float] = {}
    for operand in ("I", "W", "O"):
        name = LayerOperand(operand)
        top = evaluation.mapping.unit_mem_data_movement[name][-1]
        amount, precision, periods = (
            top.get_attribute(attribute)
            for attribute in (
                DataMoveAttr.DATA_TRANS_AMOUNT_PER_PERIOD,
                DataMoveAttr.DATA_PRECISION,
                DataMoveAttr.DATA_TRANS_PERIOD_COUNT,
            )
        )
        bits = sum(
            amount.get(direction) * precision.get(direction) * periods.get(direction)
            for direction in (DataDirection.RD_OUT_TO_LOW, DataDirection.WR_IN_BY_LOW)
        )
        moved[operand] = bits / 8
    return moved


def main() -> None:
    import yaml
    from zigzag.api import get_hardware_performance_zigzag

    asked = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    told = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        os.chdir(folder)
        files = {"accelerator": accelerator(asked), "mapping": mapping(asked)}
        for name, content in files.items():
            with open(f"{name}.yaml", "w") as file:
                yaml.safe_dump(content, file, sort_keys=False)
        for number, body in enumerate(asked["layers"]):
            with open("workload.yaml", "w") as file:
                yaml.safe_dump([layer(number, body)], file, sort_keys=False)
            _, _, evaluations = get_hardware_performance_zigzag(
                "workload.yaml", "accelerator.yaml", "mapping.yaml", opt="energy", dump_folder=f"{folder}/out",
                lpf_limit=asked.get("lpf_limit", 7), loma_show_progress_bar=False,
            )  # fmt: skip
            told.append({"name": body["name"], "bytes": dram_bytes(evaluations[0][1][0][0])})
    json.dump({"version": version("zigzag-dse"), "layers": told}, sys.stdout)


if __name__ == "__main__":
    main()
