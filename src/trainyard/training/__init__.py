"""Training algorithms executed: workers with models of their own, real gradients, and a machine's clock beside them.

May import everything up to systems. `train` runs any algorithm of `mapping.algorithms` on any `Model`; a `History` comes of it.
A new model is a class with the methods of `models.Model`; a new algorithm in lockstep is one class and one row in `lockstep.py`.
No torch here: a network that implements `Model` lives in `live/`. Experiments over many runs are in `studies.py`.
"""

from trainyard.training.data import Data
from trainyard.training.history import Ages, Evaluation, Exchange, History
from trainyard.training.models import LinearSvm, LogisticRegression, Model
from trainyard.training.shards import Shards, shard
from trainyard.training.trainer import train

__all__ = [
    "Ages", "Data", "Evaluation", "Exchange", "History", "LinearSvm", "LogisticRegression", "Model", "Shards", "shard", "train",
]  # fmt: skip
