"""Training algorithms executed on real numbers: workers, gradients and exchanges, timed by a machine's rates.

In reading order: `trainer` has `train`, which runs any algorithm of `mapping.algorithms` on any `Model` and returns a `History`;
`models`, `data` and `shards` are its inputs; `workspace` is what all algorithms share, `clock` the durations; `lockstep` executes
the algorithms in which all workers step together, `direct` executes DIRECT; `history` is the record of a run; `studies` compares
many runs, `choice` searches tau and cluster size. May import everything up to systems; no torch (a network that implements `Model`
is in `live/`). A new lockstep algorithm is one class and one row in `lockstep.RULES`.
"""

from trainyard.training.data import Data
from trainyard.training.history import Ages, Evaluation, Exchange, History
from trainyard.training.models import LinearSvm, LogisticRegression, Model
from trainyard.training.shards import Shards, shard
from trainyard.training.trainer import train

__all__ = [
    "Ages", "Data", "Evaluation", "Exchange", "History", "LinearSvm", "LogisticRegression", "Model", "Shards", "shard", "train",
]  # fmt: skip
