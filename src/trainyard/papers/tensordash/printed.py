"""The inputs that the paper prints: shares of zeros by model and operand, as masks of our Steps.

What is printed of a tensor is used; what is not printed is dense. Six models get one share such that their potential is the printed
one (Fig. 1): in A and G the four of which no tensor is printed, in G alone BERT and Detectron2, whose benefits "come from their
backward pass only" (Sec. IV-A). For VGG16 and img2txt not even a potential is printed; the mean of all eight is, and leaves
2 x 2.575 for the two. Zeros fall at random: the paper says that they cluster in feature maps (Sec. IV-D), not how much.

BERT: G of "roughly 60 %" in "most of the layers" would have a potential of 3 / (1 + 2 x 0.4) = 1.67; the printed 2.0 is of all
layers and needs 75 %. Detectron2: 73 to 94 % are printed for two kinds of layers; these alone would give 1.45, the printed 2.2
needs three quarters in all of them.

SNLI: fully connected layers alone. With them the printed shares give 5.9x, next to the printed 5.6x; the LSTMs, 94 % of all MACs,
would leave 1.05x if they were dense, and 17x if they were as sparse as "other layers".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from trainyard.masks.generated import Cluster, generated_masks
from trainyard.papers.tensordash.models import LEFT_OUT, NAMES, Subject, model, own_step, whole_of
from trainyard.papers.tensordash.potential import share_for
from trainyard.workloads import zoo

Shares = Mapping[str, Mapping[str, float]]
"""Layer pattern -> operand -> share of zeros; the first pattern that matches counts."""

# fmt: off
SHARES: Mapping[str, Shares] = {
    "SNLI": {
        "premise.projection":     {"A": 0.63, "G": 0.95},  # Sec. IV-A: 63 % and 60 % in the two projections
        "hypothesis.projection":  {"A": 0.60, "G": 0.95},  # Sec. IV-A
        "out.0":                  {"A": 0.00, "G": 0.95},  # Sec. IV-A: 0 % in the first classifier layer
        "*":                      {"A": 0.94, "G": 0.95},  # Sec. IV-A: over 94 % in others; G more than 95 %
    },
    "NCF": {
        "*":                      {"G": 0.83},             # Sec. IV-A; no zeros in A of the first layer, not printed of others
    },
}
POTENTIALS: Mapping[str, float] = {
    "BERT":     2.0,    # Fig. 1, Sec. II
    "Dtctron2": 2.2,    # Fig. 1, Sec. II
    "SQZNet":   2.4,    # Fig. 1, Sec. II: more than 2.4
    "RsNt50_S": 1.75,   # Fig. 1, Sec. II
    "VGG16":    2.575,  # derived: Fig. 1's mean of 2.6 less the six that are printed, halved
    "img2txt":  2.575,  # derived: the same
}
BATCHES = {
    "NCF": 128, "SNLI": 64,  # Sec. IV: batches from 64 to 143; layers without positions sum A*G over them
}
WITHOUT_ZEROS: Mapping[str, tuple[str, str]] = {  # layer pattern and operand that stays dense where a share follows from Fig. 1
    "BERT":     ("*", "A"),                   # Sec. IV-A: benefits come from the backward pass only, little sparsity in A
    "Dtctron2": ("*", "A"),                   # Sec. IV-A: the same; A negligible in the layers that dominate
    "SQZNet":   ("features.0", "A"),          # a picture, and so of the three below
    "RsNt50_S": ("conv1", "A"),
    "VGG16":    ("features.0", "A"),
    "img2txt":  ("encoder.conv1.conv", "A"),
}
# fmt: on


@cache
def printed(name: str, cluster: Cluster = "none") -> Subject:
    """A model with the zeros that the paper prints."""
    step, whole = own_step(name) or zoo.load(model(name).zoo, batch=BATCHES.get(name, 1)), whole_of(name)
    if name in SHARES:
        shares, about = SHARES[name], "the shares of zeros that Sec. IV-A prints"
    else:
        shares = of_potential(Subject(name, step, generated_masks(step, {}), "no zeros", whole=whole), POTENTIALS[name])
        operands = "G" if WITHOUT_ZEROS[name] == ("*", "A") else "A and G"
        about = f"one share of zeros in {operands} that makes the potential {POTENTIALS[name]}x"
    masks = generated_masks(step, {}, layers=shares, cluster=cluster)
    return Subject(name, step, masks, about, LEFT_OUT.get(name, frozenset()), whole=whole)


def of_potential(dense: Subject, potential: float) -> Shares:
    """One share of zeros in A and G, but for the operand that stays dense, that makes the potential of a model the printed one."""
    layer, letter = WITHOUT_ZEROS[dense.name]
    share = share_for(dense, potential, [(layer, letter)])
    zeros = {"A": share, "G": share}
    return {layer: zeros | {letter: 0.0}} | ({} if layer == "*" else {"*": zeros})


INPUTS = frozenset(POTENTIALS)
"""Models whose potential is an input of the second column, and no result of it."""
assert set(SHARES) | INPUTS == set(NAMES)
