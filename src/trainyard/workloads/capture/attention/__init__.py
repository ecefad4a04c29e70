"""Attention as it runs: `F.scaled_dot_product_attention` recorded as the kernel that torch would take on the device that trains.

The meta device has only the unfused path of torch, and the CPU has kernels of its own, so that both would record another step than
the one that runs. In reading order:

- choice: torch's rules, which kernel a call takes on CUDA or on the CPU
- dispatch: sends each call of a captured step to the torch op of that kernel, with shapes alone or with values
- values: those ops of CUDA on the CPU, for `real=True`
- handlers: fused attention as ops of a Step
- flex: torch's flex_attention as one kernel
- outside: the same kernels outside a capture, for torch's counter

Attention that a model writes out (product, softmax, product) stays as written.
"""
