"""How work is laid onto machines: lowering of convolutions, tiles and their order, groups of ops.

Sees arrays and devices through the protocols of `ir` alone; imports parts and kernels. A new policy is one file here, named by a
field of the part that it steers.
"""
