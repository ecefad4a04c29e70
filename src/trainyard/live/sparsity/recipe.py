"""What recipes of sparse weights share: which weights, their masks, zeros after each optimizer step, densities, state.

A mask is True where a weight is present. torch computes dense gradients, so the optimizer moves absent weights too; `step` puts
them back to zero, and clears what the optimizer remembers of them unless a recipe needs it (`keeps_absent_momentum`).
Biases, normalisation and embeddings are never pruned unless named.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from trainyard.errors import BadInput, UnknownName
from trainyard.live.sparsity.choice import random_places, share_out

WEIGHT_LAYERS = (nn.Linear, nn.Bilinear, _ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)


class SparseWeights(ABC):
    """A model's weights under masks. `weights` names layers or parameters (or is parameters); `dense` names layers to leave alone.

    Without `weights`, every trainable convolution, linear, recurrent and attention weight is taken, less those that the recipe's
    paper leaves dense (`stays_dense`). The first layer is the one that the model registers first, which may be an embedding.
    """

    keeps_absent_momentum: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        density: float,
        *,
        weights: Sequence[str | nn.Parameter] | None = None,
        dense: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        if not 0 < density <= 1:
            raise BadInput(f"density must lie above 0 and at most at 1, got {density!r} (0.1 keeps a tenth of the weights)")
        self.optimizer = optimizer
        self.weights = self._select_weights(model, weights, dense)
        self.target_density = float(density)
        self.masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in self.weights.items()}
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = 0
        self.epochs = 0
        self._check_optimizer()
        if self.budget < len(self.weights):
            raise BadInput(f"density {density!r} leaves {self.budget} weights for {len(self.weights)} tensors: ask for more")

    @classmethod
    def stays_dense(cls, model: nn.Module) -> set[str]:
        """The layers that the paper leaves dense."""
        return set()

    @abstractmethod
    def step(self) -> None:
        """To be called right after each optimizer step, before gradients are cleared."""

    def end_epoch(self) -> None:
        """To be called after each epoch."""
        self.epochs += 1

    @property
    def budget(self) -> int:
        """How many weights the target density keeps."""
        return round(self.target_density * sum(weight.numel() for weight in self.weights.values()))

    @property
    def nonzeros(self) -> int:
        """Weights present now."""
        return sum(int(mask.sum()) for mask in self.masks.values())

    @property
    def density(self) -> float:
        """Share of weights present now, over all masked tensors."""
        return self.nonzeros / sum(mask.numel() for mask in self.masks.values())

    def densities(self) -> dict[str, float]:
        """Share of weights present now, by parameter name."""
        return {name: int(mask.sum()) / mask.numel() for name, mask in self.masks.items()}

    def apply(self) -> None:
        """Makes absent weights exactly zero."""
        with torch.no_grad():
            for name, weight in self.weights.items():
                absent = ~self._mask(name)
                weight.masked_fill_(absent, 0)
                if not self.keeps_absent_momentum:
                    self._clear_state(weight, absent)

    def draw_masks(self) -> None:
        """Random masks at the target density, the same in every tensor; the total is exact, and no tensor is left empty."""
        sizes = [weight.numel() for weight in self.weights.values()]
        counts = share_out(self.budget, sizes, sizes)
        while 0 in counts:
            counts[counts.index(max(counts))] -= 1
            counts[counts.index(0)] += 1
        for (name, mask), count in zip(self.masks.items(), counts, strict=True):
            self.masks[name] = random_places(torch.ones_like(mask), count, self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {
            "recipe": type(self).__name__,
            "masks": {name: mask.clone() for name, mask in self.masks.items()},
            "steps": self.steps,
            "epochs": self.epochs,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state` was taken; the model's and the optimizer's states are loaded before."""
        recipe = type(self).__name__
        if state.get("recipe") != recipe:
            raise BadInput(f"this is a state of {state.get('recipe')!r}, not of {recipe}")
        masks = state["masks"]
        if masks.keys() != self.masks.keys():
            raise BadInput(
                f"the state holds masks of {sorted(masks)}, this recipe masks {sorted(self.masks)}: name the same weights"
            )
        for name, mask in masks.items():
            if mask.shape != self.masks[name].shape:
                raise BadInput(
                    f"the mask of {name!r} has shape {tuple(mask.shape)}, the weight {tuple(self.masks[name].shape)}: another model"
                )
        self.masks = {name: masks[name].to(weight.device, torch.bool).clone() for name, weight in self.weights.items()}
        self.steps, self.epochs = int(state["steps"]), int(state["epochs"])
        self.generator.set_state(state["generator"].cpu())
        self._load(state)
        self.apply()

    def _load(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # most recipes add nothing
        """What a recipe adds to the state."""

    def _mask(self, name: str) -> Tensor:
        """A mask where its weight is now: the model may have been moved."""
        device = self.weights[name].device
        if self.masks[name].device != device:
            self.masks[name] = self.masks[name].to(device)
        return self.masks[name]

    def _clear_state(self, weight: nn.Parameter, absent: Tensor) -> None:
        for value in self.optimizer.state.get(weight, {}).values():
            if isinstance(value, Tensor) and value.shape == weight.shape:
                value.masked_fill_(absent, 0)

    def _check_optimizer(self) -> None:
        optimized = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        missing = [name for name, weight in self.weights.items() if id(weight) not in optimized]
        if missing:
            raise BadInput(f"the optimizer does not update {', '.join(missing)}: build it over the parameters of this model")

    def _select_weights(
        self, model: nn.Module, weights: Sequence[str | nn.Parameter] | None, dense: Sequence[str]
    ) -> dict[str, nn.Parameter]:
        by_layer = weight_layers(model)
        excluded = {name for name_or_weight in _as_sequence(dense) for name in _weights_named(model, by_layer, name_or_weight)}
        if weights is not None:
            chosen = {
                name: weight
                for name_or_weight in _as_sequence(weights)
                for name, weight in _weights_named(model, by_layer, name_or_weight).items()
            }
        else:
            dense_layers = self.stays_dense(model)
            sparse_layers = [layer_weights for path, layer_weights in by_layer.items() if path not in dense_layers]
            chosen = {
                name: weight for layer_weights in sparse_layers for name, weight in layer_weights.items() if weight.requires_grad
            }
        chosen = {name: weight for name, weight in chosen.items() if name not in excluded}
        if not chosen:
            raise BadInput(
                f"no layer to prune: {type(model).__name__} has {len(by_layer)} weight layers, less those that "
                f"{type(self).__name__} leaves dense and those in dense=; name some in weights="
            )
        return chosen


def weight_layers(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """The matrices and kernels of each layer, by layer path and parameter name; one shared by two layers comes once."""
    seen = {id(p) for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag) for p in module.parameters()}
    layers: dict[str, dict[str, nn.Parameter]] = {}
    for path, module in model.named_modules():
        if not isinstance(module, WEIGHT_LAYERS):
            continue
        for name, parameter in module.named_parameters(path, recurse=False):
            if "weight" in name.rpartition(".")[2] and parameter.dim() > 1 and id(parameter) not in seen:
                seen.add(id(parameter))
                layers.setdefault(path, {})[name] = parameter
    return layers


def _as_sequence(names: Sequence[str | nn.Parameter]) -> Sequence[str | nn.Parameter]:
    return [names] if isinstance(names, str | nn.Parameter) else names


def _weights_named(
    model: nn.Module, by_layer: Mapping[str, Mapping[str, nn.Parameter]], name_or_weight: str | nn.Parameter
) -> dict[str, nn.Parameter]:
    """The weights that one entry of `weights` or `dense` means: a layer and all below it, or one parameter."""
    parameters = dict(model.named_parameters())
    if isinstance(name_or_weight, nn.Parameter):
        for name, parameter in parameters.items():
            if parameter is name_or_weight:
                return {name: parameter}
        raise BadInput(f"a parameter of shape {tuple(name_or_weight.shape)} is not one of {type(model).__name__}")
    if name_or_weight in parameters:
        return {name_or_weight: parameters[name_or_weight]}
    below = {
        name: weight
        for path, layer_weights in by_layer.items()
        if path == name_or_weight or path.startswith(f"{name_or_weight}.")
        for name, weight in layer_weights.items()
    }
    if not below:
        raise UnknownName("weight layer", name_or_weight, [*by_layer, *parameters], type(model).__name__)
    return below


def first_layer(model: nn.Module) -> set[str]:
    layers = (path for path, module in model.named_modules() if isinstance(module, (*WEIGHT_LAYERS, nn.Embedding, nn.EmbeddingBag)))
    return set(islice(layers, 1))
