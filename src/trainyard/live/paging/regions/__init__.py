"""The overlay at the level of modules: each repeated block of a model is kept, checkpointed, or compiled to save less.

Moving single tensors costs the host about 70 us for each tensor that autograd saves, since a Python hook sees all of them. On a
model whose host is nearly as slow as its device that costs more than the copies hide. Here only the call of a *region* (a decoder
layer, a residual block) is replaced, and only where it runs differently from plain training: a region that is kept runs the very
code that it runs without an overlay. Every *variant* of a region computes the same function by itself, so gradients are right
whatever is chosen, also when shapes or branches change; a plan decides about time and memory alone.

In reading order:

- finding: which modules are regions
- checkpointing: a call of which only the inputs are saved; call_state: inputs that remember, as a cache of keys and values does
- variants: the ways to run one: kept, checkpointed, compiled with a share of its activations saved
- survey: time and memory of every region in one pass of forward and backward
- planning: from the surveys to the problem of `trainyard.mapping.overlay.policy`, and from its choice to a variant for each region
- whole: the model compiled as a whole, as a rival of the plan
- contest: the plan, the plan without compiled blocks and the whole model, measured in rounds: the fastest that fits stays
- replay/: calls of blocks that are recorded as graphs of CUDA, so that the host issues one call instead of hundreds
- progress: what is to be measured of a model and what is known; pass_times: of a plan's first passes; optimizer_state
- pages: the with-block: survey passes first, then the plan

Several small copies, op by op recomputation and budgets on the CPU are the business of the folder above.
"""
