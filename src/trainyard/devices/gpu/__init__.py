"""A GPU: a roofline refined by tiles and waves, an L2 cache, launch overhead, and a host that issues op by op.

In reading order: `device` (the board), `calls` (ops that eager torch runs as one call), `kernels` (kernels that it launches for one
op), `traffic` (bytes through DRAM and L2); the time of each kind of call: `products`, `convolutions`, `depthwise`, `composites`,
`streams`, chosen by `costs`; `structured` (2:4 sparse weights) and `host` (when the device waits for it).
"""
