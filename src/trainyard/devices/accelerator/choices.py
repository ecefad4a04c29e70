"""What a cost was counted for: the tiles and orders that a search chose, kept beside each `DeviceCost` for `loop_nests`."""

from __future__ import annotations

from typing import NamedTuple

from trainyard.ir import Array
from trainyard.mapping.demand import ChainDemand, ProductDemand
from trainyard.mapping.gradient_order.chain import Chain, ChainCost
from trainyard.mapping.gradient_order.scratchpad import OrderCost, Pair
from trainyard.mapping.tiling import Supply, Tiled


class TileChoice(NamedTuple):
    """A product in tiles on an array, or a part of it; `beside` equal products share each tile step."""

    demand: ProductDemand
    tiled: Tiled
    array: Array
    supply: Supply
    beside: int = 1


class PairChoice(NamedTuple):
    """dX and dW of a layer in one order of their tiles, or one product through a scratchpad that keeps tiles."""

    demands: tuple[ProductDemand, ...]
    pair: Pair
    ordered: OrderCost
    array: Array
    supply: Supply


class ChainChoice(NamedTuple):
    """The gradients of two layers in one go."""

    demand: ChainDemand
    chain: Chain
    cost: ChainCost
    array: Array
    supply: Supply


Choice = TileChoice | PairChoice | ChainChoice
