"""The machines of the experiments: one of Table 3 with a fixed tall tile, and with a tile searched for each product.

What fusing dX and dW gains depends above all on the baseline, and the paper does not print its tiles. So there are always two
baselines:

* `tall`: one tile for all products, one array wide and deep and as many arrays high (`height`) as the five tiles of a fused step
  (dY, W, X, dX, dW) leave room for in the half of the scratchpad that is not being filled. Tiles that are no longer needed stay
  until others replace them. That the fixed tile is a tall one follows from no principle: an early model came near the paper's means
  with it. Its height then follows from the rule.
* `searched`: the tile of every product is the fastest that the search finds, for the order it is used with.

Both take products alone, matrices that im2col has written out (Sec. 6.1), elements of 4 bytes (torch's default; not printed), and
two parts where one core does the parts of a layer one after the other (not printed either).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.ir import Assumption
from trainyard.machines import with_overrides
from trainyard.machines.presets.igo import NPU, NPU_SMALL
from trainyard.papers import ledger
from trainyard.papers.igo.networks import RECOMMENDER_BATCH, Npu

Tile = Literal["tall", "searched"]
TILES: tuple[Tile, ...] = ("tall", "searched")
MACHINES: Mapping[Npu, Accelerator] = {"small": NPU_SMALL, "large": NPU}
ELEMENT_BYTES = 4
K_INNER = {"paper": "paper_mnk", "dx_major": "dx_major_mnk", "dw_major": "dw_major_nmk"}
"""Orders with k as the innermost loop."""
PARTS = Assumption(
    name="parts", value=2, meaning="parts of a layer that one core does one after the other (Sec. 5)", alternatives=(4, 8)
)


def height(npu: Accelerator, element_bytes: int = ELEMENT_BYTES) -> int:
    """Height of the tile in arrays: the largest power of two with which five tiles fit.

    >>> height(NPU), height(NPU_SMALL)
    (16, 16)
    """
    high = 1
    while _five_tiles(npu, 2 * high) * element_bytes <= npu.scratchpad_bytes / 2:
        high *= 2
    return high


def _five_tiles(npu: Accelerator, high: int) -> int:
    """Elements of dY, W, X, dX, dW."""
    m, n, k = tall_tile(npu, high)
    return m * n + 2 * k * n + 2 * m * k


def tall_tile(npu: Accelerator, high: int) -> tuple[int, int, int]:
    """In the m, n, k of the forward product."""
    assert isinstance(npu.array, Systolic)
    return high * npu.array.rows, npu.array.columns, npu.array.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One of the two NPUs and what an experiment changes in it. `batch` is that of one core; None is the paper's.

    Scratchpad, bandwidth and batch grow with the cores (Sec. 6.3). With `k_inner` k is the innermost loop of dXmajor and dWmajor.
    `changes` are fields of the machine by path, in other values than assumed.
    """

    npu: Npu = "large"
    cores: int = 1
    bandwidth: float = 1.0
    batch: int | None = None
    parts: int = PARTS.value
    high: int | None = None
    recommender_batch: int = RECOMMENDER_BATCH.value
    k_inner: bool = False
    changes: tuple[tuple[str, Any], ...] = ()

    def machine(self, tile: Tile = "tall", **order: Any) -> Accelerator:
        """`order` are the fields of this paper: order, partition."""
        npu = MACHINES[self.npu]
        if self.k_inner and "order" in order:
            order = {**order, "order": K_INNER.get(order["order"], order["order"])}
        scaled = replace(
            npu,
            cores=self.cores,
            parts=self.parts,
            scratchpad_bytes=npu.scratchpad_bytes * self.cores,
            dram_bytes_per_s=npu.dram_bytes_per_s * self.cores * self.bandwidth,
            scope="products",
            im2col="materialised",
            precision="fp32",
            tiling="search" if tile == "searched" else tall_tile(npu, self.high or height(npu)),
            reuse="lru" if tile == "tall" or self.cores > 1 else "step",
            **order,
        )
        changed = with_overrides(scaled, dict(self.changes))
        assert isinstance(changed, Accelerator)
        return changed


stated = partial(ledger.stated, "igo")
"""The value that the paper prints for a claim."""
SMALL, LARGE = Case(npu="small"), Case(npu="large")
CASES: Mapping[Npu, Case] = {"small": SMALL, "large": LARGE}


def text(machine: Accelerator) -> str:
    """The machine as the command line takes it: the fields that differ from the named machine.

    >>> text(SMALL.machine(order="paper"))
    'npu-small(precision=fp32,order=paper,tiling=(720,45,45),reuse=lru,scope=products,im2col=materialised)'
    """
    name, base = ("npu-small", NPU_SMALL) if machine.array == NPU_SMALL.array else ("npu", NPU)
    fields = ("precision", "order", "tiling", "reuse", "cores", "partition", "parts", "scope", "im2col")
    sizes = {"scratchpad_bytes": "B", "dram_bytes_per_s": "B/s"}
    changed = {field: getattr(machine, field) for field in (*fields, *sizes) if getattr(machine, field) != getattr(base, field)}
    terms = {field: f"{value:.0f} {sizes[field]}" if field in sizes else _term(value) for field, value in changed.items()}
    return f"{name}({','.join(f'{field}={value}' for field, value in terms.items())})"


def _term(value: Any) -> str:
    return f"({','.join(map(str, value))})" if isinstance(value, tuple) else str(value)
