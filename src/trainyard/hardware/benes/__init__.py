"""Distribution networks: `network` is Benes with multicast, `other_networks` its rivals, `mesh` the NoC between Flex-DPEs."""
