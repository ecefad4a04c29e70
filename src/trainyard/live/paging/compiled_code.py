"""Functions that a program has compiled by itself, below a mode that sees single operators: torch does not compile there.

It runs their own code instead, and where `fullgraph=True` was asked for, that is an error of torch's.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def uncompiled() -> AbstractContextManager[Any]:
    """While it is open, compiled functions run their own code, with and without `fullgraph=True`.

    >>> double = torch.compile(lambda x: 2 * x, backend="eager", fullgraph=True)
    >>> with uncompiled():
    ...     double(torch.ones(2))
    tensor([2., 2.])
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
