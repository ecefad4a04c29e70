"""MC-DLA's memory-node: `board` with its `dimms`, `address_space` as a driver sees it, `remote_memory` the driver itself."""
