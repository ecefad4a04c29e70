"""A GPU as a roofline with what a roofline leaves out.

In reading order: `device` is the part; `calls` what eager torch does as one call, `kernels` what it starts for one; then the law of
each kind of call: `products`, `convolutions`, `composites`, `streams`, `structured`; `traffic` through DRAM and L2, `costs` and
`host`.
"""
