"""Compiled loops of mapping: `tile_ranges` finds tiles for one bandwidth or a range of them; `tile_search` chooses among
`tile_sizes` by `cell_bounds` and `cell_pruning` and evaluates single ones (`tile_leaf`), from what `tile_bounds`, `tile_cycles`,
`tile_energy` and the steps of `tiles` say of a tile, keeping the best in a `tile_front`; `fixed_tiles` orders and walks given ones,
`product_costs` and `event_counts` derive costs from them and `step_energy` their joules, `level_tiles` cuts tiles for memories
inside the scratchpad; the package
`gradient_order` moves tiles of both gradients through a scratchpad; `overlay` prices and searches memory overlays.
"""
