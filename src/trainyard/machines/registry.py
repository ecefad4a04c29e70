"""Which parts and machines there are. Nothing is imported until it is named: a row is a name, where it lives, what it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, NamedTuple

from trainyard.errors import BadInput, UnknownName

GROUP = "trainyard.parts"
"""Entry point group: a package that declares `name = "module:Class"` in it adds a part type."""

Kind = Literal["array", "device", "system", "part"]


class Preset(NamedTuple):
    """A machine or part with a name: where it lives in this package (`module:name`), and one line about it."""

    home: str
    about: str

    @property
    def path(self) -> str:
        return f"trainyard.{self.home}"


# fmt: off
PARTS: Mapping[str, Preset] = {
    "systolic":    Preset("arrays.dense.systolic:Systolic",        "array: rows x columns of MAC cells, ws, os or is"),
    "systolic-units": Preset("arrays.dense.systolic_units:SystolicUnits", "array: several systolic arrays that take folds in turn"),
    "spatial":     Preset("arrays.dense.spatial:Spatial",          "array: elements, each a dot product along K"),
    "tensorcore":  Preset("arrays.dense.tensorcore:TensorCore",    "array: tiles of rows x columns dot products of lanes"),
    "tensordash":  Preset("arrays.tensordash.array:TensorDash", "array: a tensorcore that skips zeros at run time"),
    "sigma":       Preset("arrays.sigma.array:Sigma",        "array: Flex-DPEs that hold only non-zeros"),
    "eie":         Preset("arrays.rivals.eie:Eie",                  "array: elements fed by one broadcast non-zero a cycle"),
    "scnn":        Preset("arrays.rivals.scnn:Scnn",                "array: Cartesian products of non-zeros, scattered"),
    "outerspace":  Preset("arrays.rivals.outerspace:OuterSpace",    "array: outer products of non-zeros, then a merge"),
    "eyeriss-v2":  Preset("arrays.rivals.eyeriss_v2:EyerissV2",     "array: elements that skip both zeros, linear reduction"),
    "packed-systolic": Preset("arrays.rivals.packed_systolic:PackedSystolic", "array: systolic, sparse columns combined"),
    "cambricon-x": Preset("arrays.rivals.cambricon_x:CambriconX",   "array: adder trees that skip the zeros of weights"),
    "accelerator": Preset("devices.accelerator.device:Accelerator", "device: an array with a scratchpad, DRAM and a clock"),
    "gpu":         Preset("devices.gpu.device:Gpu",                 "device: a GPU's roofline, launches, cache and tiles"),
    "dpu":         Preset("devices.dpu.device:Dpu",                 "device: a processor in a DRAM bank: pipeline, WRAM, MRAM"),
    "single":      Preset("systems.single:Single",           "system: one device alone"),
    "replicas":    Preset("systems.scale_out.replicas:Replicas",       "system: data-parallel copies of a device on a ring"),
    "device-centric": Preset("systems.node.systems:DeviceCentric",   "system: devices in rings, host memory behind PCIe"),
    "host-centric": Preset("systems.node.systems:HostCentric",       "system: devices in rings, host memory behind some links"),
    "memory-centric": Preset("systems.node.systems:MemoryCentric",   "system: devices and memory-nodes in rings"),
    "wired":       Preset("systems.node.systems:Wired",              "system: any graph of devices, memories and links"),
    "switched":    Preset("systems.scale_out.plane:Switched",          "system: devices and memory-nodes on switches"),
    "plane":       Preset("systems.scale_out.plane:Plane",             "system: hundreds of devices on planes of switches"),
    "cluster":     Preset("systems.scale_out.cluster:Cluster",         "system: nodes that pass messages over network cards"),
    "host-mediated": Preset("systems.pim.systems:HostMediated",      "system: DPUs that exchange through the host"),
    "dpu-to-dpu":  Preset("systems.pim.systems:DpuToDpu",            "system: DPUs in clusters, joined by crossbars"),
    "level":       Preset("mapping.levels.level:Level",              "part: a memory between a scratchpad and an array"),
    "topology":    Preset("hardware.topology.graph:Topology",         "part: places and wires of a node"),
    "memory-node": Preset("hardware.memory_node.board:MemoryNode",    "part: DIMMs behind links, in groups"),
    "crossbar":    Preset("hardware.crossbar.hierarchy:Crossbar",         "part: a hierarchy of crossbars between DPUs"),
    "agau":        Preset("hardware.agau.unit:Agau",                 "part: a cluster's atomic gradient accumulation unit"),
    "dsc":         Preset("hardware.dsc.unit:Dsc",                   "part: tokens and barriers between clusters"),
    "host-link":   Preset("hardware.dpu.host_link:HostLink",        "part: what carries data between DPUs and their host"),
    "synchronous": Preset("mapping.algorithms:Synchronous",  "algorithm: gradients of all workers in every step"),
    "gradient-averaging": Preset("mapping.algorithms:GradientAveraging", "algorithm: PIM-Opt's GA-SGD"),
    "model-averaging": Preset("mapping.algorithms:ModelAveraging", "algorithm: PIM-Opt's MA-SGD"),
    "admm":        Preset("mapping.algorithms:ADMM",         "algorithm: consensus ADMM"),
    "elastic-averaging": Preset("mapping.algorithms:ElasticAveraging", "algorithm: EASGD"),
    "decentralized-sgd": Preset("mapping.algorithms:DecentralizedSgd", "algorithm: D-PSGD, neighbours in a ring"),
    "locality-aware": Preset("mapping.algorithms:Direct",    "algorithm: DIRECT's, with a staleness threshold tau"),
    "pipeline":    Preset("mapping.pipeline.schedule:Pipeline",       "plan: stages, microbatches and their schedule"),
    "expert-parallel": Preset("mapping.parallel.experts:ExpertParallel", "plan: experts over devices, capacity and imbalance"),
}

MACHINES: Mapping[str, Preset] = {
    "tpu":       Preset("machines.presets.sigma:TPU",              "128x128 weight-stationary systolic array: SIGMA's baseline"),
    "sigma":     Preset("machines.presets.sigma:SIGMA",            "128 Flex-DPEs of 128: maps non-zeros only, any shape"),
    "eie":       Preset("machines.presets.sigma:EIE",              "EIE at 16384 multipliers behind SIGMA's memory"),
    "scnn":      Preset("machines.presets.sigma:SCNN",             "SCNN, likewise"),
    "outerspace": Preset("machines.presets.sigma:OUTERSPACE",       "OuterSPACE, likewise"),
    "eyeriss-v2": Preset("machines.presets.sigma:EYERISS_V2",       "Eyeriss v2, likewise"),
    "packed-systolic": Preset("machines.presets.sigma:PACKED_SYSTOLIC", "a systolic array with combined columns, likewise"),
    "cambricon-x": Preset("machines.presets.sigma:CAMBRICON_X",     "Cambricon-X, likewise"),
    "npu":       Preset("machines.presets.igo:NPU",                "128x128 systolic array, 8 MiB, 150 GB/s: IGO's large NPU"),
    "npu-small": Preset("machines.presets.igo:NPU_SMALL",          "45x45 systolic array, 1 MiB, 22 GB/s: IGO's small NPU"),
    "spatial":   Preset("machines.presets.mcdla:DEVICE",           "1024 elements of 125 MACs, 900 GB/s: MC-DLA's device-node"),
    "tensorcore": Preset("machines.presets.tensordash:TENSORCORE",  "256 tensor cores, 24 MiB, LPDDR4: TensorDash's baseline"),
    "tensordash": Preset("machines.presets.tensordash:TENSORDASH",  "the same chip with TensorDash: skips zeros at run time"),
    "dc-dla":    Preset("machines.presets.mcdla:DC_DLA",           "eight devices in a cube mesh, paging over PCIe"),
    "hc-dla":    Preset("machines.presets.mcdla:HC_DLA",           "eight devices, half of their links to the host"),
    "mcdla-s":   Preset("machines.presets.mcdla:MCDLA_S",          "MC-DLA as a star: memory-nodes folded inward (Fig. 7b)"),
    "mcdla-l":   Preset("machines.presets.mcdla:MCDLA_L",          "MC-DLA in rings, a page's neighbour on one side"),
    "mcdla-b":   Preset("machines.presets.mcdla:MCDLA_B",          "MC-DLA in rings, pages dealt to both sides"),
    "dc-dla-oracle": Preset("machines.presets.mcdla:DC_DLA_ORACLE", "DC-DLA with infinite memory: nothing is paged"),
    "mcdla-16":  Preset("machines.presets.mcdla:SWITCHED_NODE", "16 devices and 16 memory-nodes on six switches"),
    "mcdla-planes": Preset("machines.presets.mcdla:PLANES",  "256 devices and memory-nodes on switched planes"),
    "mcdla-infiniband": Preset("machines.presets.mcdla:INFINIBAND", "256 devices, nodes of eight, four EDR cards"),
    "mcdla-ethernet": Preset("machines.presets.mcdla:ETHERNET", "256 devices, nodes of eight, one 100 Gb/s card"),
    "pim-opt":   Preset("machines.presets.direct:PIM_OPT",         "2048 UPMEM DPUs that exchange through the host"),
    "direct":    Preset("machines.presets.direct:DIRECT",          "2048 UPMEM DPUs that talk to each other"),
    "a100-cluster": Preset("machines.presets.direct:A100_CLUSTER", "A100s on a ring of InfiniBand: DIRECT's other baseline"),
    "upmem":     Preset("devices.dpu.presets:UPMEM",     "one UPMEM DPU: 350 MHz, 64 MB, arithmetic in software"),
    "mac-dpu":   Preset("devices.dpu.presets:MAC_DPU",   "one DPU with a MAC array, for convolutional networks"),
    "v100":      Preset("machines.presets.gpus:V100",      "NVIDIA V100, 16 GB: roofline, launches, cache, tiles"),
    "v100-32gb": Preset("machines.presets.gpus:V100_32GB", "NVIDIA V100, 32 GB"),
    "a100":      Preset("machines.presets.gpus:A100",      "NVIDIA A100, 40 GB: roofline, launches, cache, tiles"),
    "a100-80gb": Preset("machines.presets.gpus:A100_80GB", "NVIDIA A100, 80 GB"),
    "h100":      Preset("machines.presets.gpus:H100",      "NVIDIA H100 SXM5, 80 GB: as H200, with less and slower memory"),
    "h200":      Preset("machines.presets.gpus:H200",      "NVIDIA H200, 141 GB: roofline, launches, cache, tiles"),
    "b200":      Preset("machines.presets.gpus:B200",      "NVIDIA B200, 180 GB: data sheet, some numbers assumed"),
    "mi300x":    Preset("machines.presets.gpus:MI300X",    "AMD MI300X, 192 GB: data sheet; shares of the peak as on H200"),
    "tpu-v2":    Preset("machines.presets.chips:TPU_V2",   "Google TPU v2 chip: 46 TFLOP/s in bf16, 32 MB, 700 GB/s"),
    "tpu-v3":    Preset("machines.presets.chips:TPU_V3",   "Google TPU v3 chip: 123 TFLOP/s in bf16, 32 MB, 900 GB/s"),
    "tpu-v4":    Preset("machines.presets.chips:TPU_V4",   "Google TPU v4 chip: 275 TFLOP/s in bf16, 160 MiB, 1.2 TB/s"),
    "gaudi2":    Preset("machines.presets.chips:GAUDI2",   "Intel Gaudi 2: 432 TFLOP/s in bf16, 48 MB, 2.45 TB/s"),
    "trainium":  Preset("machines.presets.chips:TRAINIUM", "AWS Trainium, first generation: 183 TFLOP/s in bf16, 48 MiB, 820 GB/s"),
}
# fmt: on


def load(path: str) -> Any:
    """What `module:name` names.

    >>> load("trainyard.ir.ops:MatMul")(4, 2, 3).macs
    24
    """
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def names() -> dict[str, str]:
    """Machine names with one line about each."""
    return {name: row.about for name, row in MACHINES.items()}


def about(text: str) -> str:
    """The line about the machine that a text names or changes; empty for a file, and for a part that is no machine.

    >>> about("npu(dram=75 GB/s)")
    "128x128 systolic array, 8 MiB, 150 GB/s: IGO's large NPU; changed here"
    >>> about("mine.toml")
    ''
    """
    name, bracket, _ = text.partition("(")
    row = MACHINES.get(name.strip())
    return "" if row is None else f"{row.about}; changed here" if bracket else row.about


def preset(name: str) -> Any:
    """The machine of that name."""
    if name not in MACHINES:
        raise UnknownName("machine", name, {*MACHINES, *part_names()})
    return load(MACHINES[name].path)


@cache
def _added_parts() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in PARTS}


def part_names() -> tuple[str, ...]:
    return (*PARTS, *_added_parts())


def about_parts() -> dict[str, str]:
    """Part names with one line about each: what it is, and for an added part what its class says of itself."""
    added = {name: part_class(name) for name in _added_parts()}
    return {name: row.about for name, row in PARTS.items()} | {
        name: f"{kind_of(part)}: {next(iter((part.__doc__ or part.__name__).strip().splitlines()))}" for name, part in added.items()
    }


def part_types() -> dict[str, type]:
    """Part types by name: the built-in ones and those of installed packages."""
    return {name: part_class(name) for name in part_names()}


@cache
def part_class(name: str, where: str = "") -> type:
    """The class behind a `type` name; `module:Class` names one whose module is already imported."""
    if name in PARTS:
        candidate = load(PARTS[name].path)
    elif ":" in name:
        module, _, qualified = name.partition(":")
        candidate = getattr(sys.modules.get(module), qualified, None)
        if candidate is None:
            raise BadInput(f"{where}type '{name}' is not imported: import {module} first, or declare it in entry points '{GROUP}'")
    elif name in _added_parts():
        candidate = _added_parts()[name].load()
    else:
        raise UnknownName("part type", name, part_names(), where.rstrip(":. "))
    if not (isinstance(candidate, type) and is_dataclass(candidate)):
        raise BadInput(f"part type '{name}' is not a dataclass: {candidate!r}")
    return candidate


@cache
def type_name(part: type) -> str:
    """The `type` that a file writes for a class, the inverse of `part_class`."""
    path = f"{part.__module__}:{part.__qualname__}"
    built_in = ((name, row.path) for name, row in PARTS.items())
    for name, where in (*built_in, *((name, point.value) for name, point in _added_parts().items())):
        if where == path:
            return name
    return path


def kind_of(part: Any) -> Kind:
    """What a part (or a class of parts) is, by what it can do."""
    for method, kind in (("plan", "system"), ("works", "device"), ("granule", "array")):
        if callable(getattr(part, method, None)):
            return kind  # type: ignore[return-value]  # one of the three above
    return "part"


@cache
def _places() -> tuple[tuple[str, str, str], ...]:
    """Name, module and attribute of each preset."""
    paths = ((name, row.path.partition(":")) for name, row in MACHINES.items())
    return tuple((name, module, attribute) for name, (module, _, attribute) in paths)


def loaded_presets() -> Iterator[tuple[str, Any]]:
    """Presets whose modules are already imported; looking a name up must not import every machine there is."""
    for name, module, attribute in _places():
        machine = getattr(sys.modules.get(module), attribute, None)
        if machine is not None:
            yield name, machine
