"""How work is laid onto machines.

In reading order: `works` groups ops; `demand` and `profile` say what a Work asks for; `lowering` turns convolutions into products;
`tiling` finds tiles, by `bandwidths` once for many machines; `constraints` say what a user fixes of them, `walk` goes through them,
`loop_orders` orders given ones; `tile_costs` and `tile_descent` find those of arrays that are asked tile by tile, with and without
bounds, and `tile_choice` says which is taken; `halo` is what tiles of a convolution share, `bands` are rows of its images; `levels`
cuts tiles further for memories inside the scratchpad; `precision` gives element types. Then the policies, a folder each:
`between_layers` (what stays on chip from one Work to the next), `gradient_order` (IGO), `overlay` (MC-DLA), `parallel`, `pipeline`;
and `algorithms`, what workers exchange and when. Sees arrays and devices through the protocols of `ir` alone. A new policy is one
file or folder, named by a field of the part that it steers.
"""

from __future__ import annotations

from trainyard.lazy import exports

__getattr__ = exports(__name__)
