"""Distribution networks of SIGMA: `network` is the Benes network with multicast inside a Flex-DPE, `mesh` the NoC between
Flex-DPEs, `other_networks` the crossbar, tree, bus, butterfly and mesh that the paper compares with.
"""
