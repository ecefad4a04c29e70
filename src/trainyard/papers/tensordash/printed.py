"""The inputs that the paper prints: shares of zeros by model and operand, as masks of our Steps.

What is printed of a tensor is used; what is not printed is dense. Of four models no tensor is printed: there A and G get one share,
such that the potential is the printed one (Fig. 1). For VGG16 and img2txt not even that is printed; the mean of all eight is, and
leaves 2 x 2.575 for the two. Zeros fall at random: the paper says that they cluster in feature maps (Sec. IV-D), not how much.

SNLI: fully connected layers alone. With them the printed shares give 5.9x, next to the printed 5.6x; the LSTMs, 94 % of all MACs,
would leave 1.05x if they were dense, and 17x if they were as sparse as "other layers".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from trainyard.ir import Step
from trainyard.masks.generated import Cluster, generated_masks
from trainyard.papers.tensordash.models import LEFT_OUT, NAMES, Subject, model, own_step, whole_of
from trainyard.papers.tensordash.potential import share_for
from trainyard.workloads import zoo

Shares = Mapping[str, Mapping[str, float]]
"""Layer pattern -> operand -> share of zeros; the first pattern that matches counts."""

# fmt: off
SHARES: Mapping[str, Shares] = {
    "BERT": {
        "*":                      {"G": 0.60},             # Sec. IV-A: roughly 60 % in most layers; little in A
    },
    "SNLI": {
        "premise.projection":     {"A": 0.63, "G": 0.95},  # Sec. IV-A: 63 % and 60 % in the two projections
        "hypothesis.projection":  {"A": 0.60, "G": 0.95},  # Sec. IV-A
        "out.0":                  {"A": 0.00, "G": 0.95},  # Sec. IV-A: 0 % in the first classifier layer
        "*":                      {"A": 0.94, "G": 0.95},  # Sec. IV-A: over 94 % in others; G more than 95 %
    },
    "Dtctron2": {
        "backbone.fpn.layer_blocks.*": {"G": 0.835},       # Sec. IV-A: 73 to 94 %, the middle; A negligible
        "rpn.head.conv":               {"G": 0.835},       # Sec. IV-A
    },
    "NCF": {
        "*":                      {"G": 0.83},             # Sec. IV-A; no zeros in A of the first layer, not printed of others
    },
}
POTENTIALS: Mapping[str, float] = {
    "SQZNet":   2.4,    # Fig. 1, Sec. II: more than 2.4
    "RsNt50_S": 1.75,   # Fig. 1, Sec. II
    "VGG16":    2.575,  # derived: Fig. 1's mean of 2.6 less the six that are printed, halved
    "img2txt":  2.575,  # derived: the same
}
BATCHES = {
    "NCF": 128, "SNLI": 64,  # Sec. IV: batches from 64 to 143; layers without positions sum A*G over them
}
# fmt: on
WITHOUT_IMAGE = {"SQZNet": "features.0", "RsNt50_S": "conv1", "VGG16": "features.0", "img2txt": "encoder.conv1.conv"}
"""First layers: their A is a picture, and dense."""


@cache
def printed(name: str, cluster: Cluster = "none") -> Subject:
    """A model with the zeros that the paper prints."""
    step = own_step(name) or zoo.load(model(name).zoo, batch=BATCHES.get(name, 1))
    if name in SHARES:
        shares, about = SHARES[name], "the shares of zeros that Sec. IV-A prints"
    else:
        shares = of_potential(step, POTENTIALS[name], WITHOUT_IMAGE[name])
        about = f"one share of zeros in A and G that makes the potential {POTENTIALS[name]}x"
    masks = generated_masks(step, {}, layers=shares, cluster=cluster)
    return Subject(name, step, masks, about, LEFT_OUT.get(name, frozenset()), whole=whole_of(name))


def of_potential(step: Step, potential: float, first: str) -> Shares:
    """One share of A and G, the first layer's A dense, that makes the potential of a step the printed one."""
    full = Subject(step.name, step, generated_masks(step, {}), "no zeros")
    share = share_for(full, potential, [(first, "A*W")])
    return {first: {"A": 0.0, "G": share}, "*": {"A": share, "G": share}}


INPUTS = frozenset(POTENTIALS)
"""Models whose potential is an input of the second column, and no result of it."""
assert set(SHARES) | INPUTS == set(NAMES)
