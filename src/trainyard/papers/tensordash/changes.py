"""TensorDash's readings that were changed after results had been seen, each with the results before it."""

from __future__ import annotations

from trainyard.papers.changes import Change

CHANGES = (
    Change(
        what="printed zeros of BERT and Detectron2",
        was="G of BERT 60 % in all layers, G of Detectron2 83.5 % in FPN and RPN and dense elsewhere",
        now="one share of G in all layers, such that the potential is Fig. 1's: 75 and 76 %",
        argument="the old shares have potentials of 1.67 and 1.45, where Fig. 1 prints 2.0 and 2.2; of both Sec. IV-A says that "
        "benefits come from their backward pass only, and prints 60 % for most layers of BERT and 73 to 94 % for two kinds of "
        "layers of Detectron2, not for all. The other models of which Fig. 1 is printed are treated alike",
        before={
            "tensordash.speedup": 1.874, "tensordash.depth.2": 1.485, "tensordash.depth.4": 1.874, "tensordash.depth.5": 1.975,
            "tensordash.rows.1": 2.031, "tensordash.rows.16": 1.748, "tensordash.columns.max_drop": 1.25,
            "tensordash.wide16.speedup": 1.555, "tensordash.energy.core": 1.759, "tensordash.energy.chip": 1.317,
            "tensordash.bfloat16.core_energy": 1.731, "tensordash.bfloat16.chip_energy": 1.269,
        },
        worse="potentials of the two are inputs now, and no longer results from printed inputs",
        tried=3,
        column="printed",
    ),
)  # fmt: skip
