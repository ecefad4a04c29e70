"""What makes zeros in training, as recipes for one's own PyTorch model: pruned weights, quantised activations, sparse gradients.

Zeros in W: SparseMomentum (`sparse_momentum`), DynamicReparameterisation (`dynamic_reparameterisation`), DropBack (`dropback`),
GradualPruning (`gradual_pruning`). They share `recipe.SparseWeights`, the exact selections of `choice`, and one use:

    recipe = SparseMomentum(model, optimizer, density=0.1)
    for epoch in range(epochs):
        for inputs, targets in batches:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
            recipe.step()            # right behind the optimizer's: absent weights are zero again
        recipe.end_epoch()

Zeros in A: `pact(model, bits=4)`. Zeros in G (`selective_backpropagation`): SelectiveBackpropagation (all but the largest
entries), BiggestLosers (all but samples of high loss), `pad` (padding tokens). To continue a run, build model, optimizer and
recipe anew, then load their states. A new recipe is one file here, headed by its citation, and a line below; one that masks
weights subclasses `SparseWeights`.

The papers' full texts were not at hand: mechanisms follow their abstracts and public descriptions, and what could not be looked up
(defaults, which layers stay dense, equation numbers) is from memory, marked `assumed` where it is a number.
"""

from trainyard.live.sparsity.dropback import DropBack
from trainyard.live.sparsity.dynamic_reparameterisation import DynamicReparameterisation
from trainyard.live.sparsity.gradual_pruning import GradualPruning
from trainyard.live.sparsity.pact import Pact, pact, pact_parameter_groups
from trainyard.live.sparsity.padding import Padded, gradient_of_real_tokens, pad
from trainyard.live.sparsity.recipe import SparseWeights
from trainyard.live.sparsity.selective_backpropagation import BiggestLosers, SelectiveBackpropagation
from trainyard.live.sparsity.sparse_momentum import SparseMomentum

__all__ = [
    "BiggestLosers", "DropBack", "DynamicReparameterisation", "GradualPruning", "Pact", "Padded", "SelectiveBackpropagation",
    "SparseMomentum", "SparseWeights", "gradient_of_real_tokens", "pact", "pact_parameter_groups", "pad",
]  # fmt: skip
