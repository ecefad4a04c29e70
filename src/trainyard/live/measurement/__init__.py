"""A training step on a real device, timed per layer and phase, as the same Result that a simulated machine gives.

In reading order:

- measure: `ty.measure`, for a model, a zoo recipe or a Step
- training_step: one step of a model that can be run over and over
- attribution: the layer and phase of every op while it runs
- stopwatch: three methods to time the ops: profiler, CUDA events, host clock
- nvml: energy counter and clocks of an NVIDIA board
- replay: a Step without its model, run op by op
"""
