"""Compiled loops of mapping: `tile_search`, `tiles`, `product_costs`, `gradient_order`, `gradient_chain`, `overlay`."""
