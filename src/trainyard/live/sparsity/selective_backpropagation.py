"""Gradients that are not passed back.

meProp. X. Sun, X. Ren, S. Ma, H. Wang: meProp: Sparsified Back Propagation for Accelerated Deep Learning with Reduced Overfitting.
ICML 2017. Of the gradient of a layer's output, only the k entries of largest magnitude go on into the gradients of the layer's
input, weight and bias; k is for each sample (`unified=False`) or, as in the paper's GPU version, the same k entries for the whole
batch, ranked by their summed magnitude. The output layer passes everything back: it is small already.

Selective-Backprop. A. H. Jiang et al.: Accelerating Deep Learning by Focusing on the Biggest Losers. arXiv:1910.00762, 2019. A
sample is backpropagated with the probability CDF(loss)^beta, where CDF is the loss's rank among recent ones. The paper gathers the
chosen samples of several batches into one; here they stay in their batch, and the rows of the others are zero in every G.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from trainyard.errors import BadInput, UnknownName
from trainyard.live.sparsity.choice import largest


class SelectiveBackpropagation:
    """Hooks on layers; `remove()` or leaving a `with` block takes them off.

    `keep` is a number of entries (an int) or a share of them (a float). A convolution's entries are all outputs of one sample;
    any other layer's are its features, one vector for each row of its output (a sample, or a token of one).
    `layers` are types or names; by default every linear layer but the last.
    """

    def __init__(
        self,
        model: nn.Module,
        keep: int | float,
        *,
        layers: Sequence[str | type[nn.Module]] | None = None,
        unified: bool = False,
    ) -> None:
        if isinstance(keep, bool) or (isinstance(keep, int) and keep < 1) or (isinstance(keep, float) and not 0 < keep <= 1):
            raise BadInput(f"keep must be a number of entries of at least 1, or a share above 0 and at most 1, got {keep!r}")
        self.keep, self.unified = keep, unified
        self.layers = _layers(model, layers)
        self._handles = [module.register_forward_hook(partial(self._watch, path)) for path, module in self.layers.items()]

    def kept(self, entries: int) -> int:
        """How many of `entries` are passed back."""
        return min(entries, self.keep) if isinstance(self.keep, int) else max(1, round(self.keep * entries))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> SelectiveBackpropagation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def _watch(self, path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            raise BadInput(f"layer {path!r} puts out {type(output).__name__}, not a tensor: choose a layer inside it")
        if output.requires_grad:
            output.register_hook(partial(self._select, isinstance(module, _ConvNd)))

    def _select(self, whole_sample: bool, gradient: Tensor) -> Tensor:
        rows = gradient.flatten(1) if whole_sample else gradient.reshape(-1, gradient.shape[-1])
        count = self.kept(rows.shape[1])
        magnitude = rows.abs()
        if self.unified:
            chosen = largest(magnitude.sum(0), count).expand_as(rows)
        else:
            chosen = torch.zeros_like(rows, dtype=torch.bool).scatter_(1, magnitude.topk(count, dim=1).indices, True)
        return torch.where(chosen, rows, 0).reshape(gradient.shape)


def _layers(model: nn.Module, requested: Sequence[str | type[nn.Module]] | None) -> dict[str, nn.Module]:
    modules = dict(model.named_modules())
    if requested is None:
        linear = [path for path, module in modules.items() if isinstance(module, nn.Linear)]
        if len(linear) < 2:
            raise BadInput(
                f"{type(model).__name__} has {len(linear)} linear layers, and the last one passes all back: name others in layers="
            )
        return {path: modules[path] for path in linear[:-1]}
    layers: dict[str, nn.Module] = {}
    for entry in requested:
        if isinstance(entry, str):
            if entry not in modules:
                raise UnknownName("layer", entry, modules, type(model).__name__)
            layers[entry] = modules[entry]
        else:
            layers.update({path: module for path, module in modules.items() if isinstance(module, entry)})
    if not layers:
        raise BadInput(f"{type(model).__name__} has no layer of {[getattr(w, '__name__', w) for w in requested]}")
    return layers


class BiggestLosers:
    """From the losses of all samples, the mean over those that are passed back: `losers(losses).backward()`.

    beta sets the selectivity: about 1 / (1 + beta) of the samples are backpropagated, always that with the largest loss.
    """

    def __init__(self, beta: float = 1.0, *, history: int = 1024, seed: int = 0) -> None:
        if not beta >= 0 or history < 1:
            raise BadInput(f"beta={beta!r} must be at least 0, history={history!r} losses at least 1")
        self.beta = beta
        self.generator = torch.Generator().manual_seed(seed)
        self._recent: deque[float] = deque(maxlen=history)

    def __call__(self, losses: Tensor) -> Tensor:
        return losses[self.select(losses)].mean()

    def select(self, losses: Tensor) -> Tensor:
        """True for each sample that is backpropagated."""
        if losses.dim() != 1 or not len(losses):
            raise BadInput(f"one loss for each sample is needed, got shape {tuple(losses.shape)}: use reduction='none'")
        values = losses.detach().double().cpu()
        self._recent.extend(values.tolist())
        recent = torch.tensor(self._recent, dtype=torch.float64).sort().values
        rank = torch.searchsorted(recent, values, right=True) / len(recent)
        chosen = torch.rand(len(values), generator=self.generator, dtype=torch.float64) < rank**self.beta
        chosen[values.argmax()] = True
        return chosen.to(losses.device)

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self._recent), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent = deque(state["recent"], maxlen=self._recent.maxlen)
        self.generator.set_state(state["generator"].cpu())
