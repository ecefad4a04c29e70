"""Compiled loops of the reduction networks: the routing of FAN and of ART, and the steps of any of them done for many vectors.

A value sits in a slot: slot n < lanes is the product of lane n, slot lanes + 3 * adder + port an output of an adder. A step writes
the sum of one, two or three slots into another. Plain Python: `watch` of the networks in `hardware.reduction.adder_trees`, cycle by
cycle, with every flip-flop; tests also find FAN's routes by a search of its links, and check every step of ART against its links.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Single = npt.NDArray[np.float32]

IDLE, BYPASS, ADD = 0, 1, 2  # what an adder of FAN does
BLOCK = 16  # vectors done at once: a step is then one vector instruction or two


@njit(cache=True, nogil=True)
def sums_of(values: Single, targets: Ints, sources: Ints, outlets: Ints, slots: int) -> Single:
    """The sums at the outlets after all steps, [vectors, outlets]; each addition rounds to FP32."""
    vectors, lanes = values.shape
    slots_of_block = np.zeros((slots, BLOCK), np.float32)
    sums = np.empty((vectors, outlets.size), np.float32)
    for start in range(0, vectors, BLOCK):
        width = min(BLOCK, vectors - start)
        for vector in range(width):
            for lane in range(lanes):
                slots_of_block[lane, vector] = values[start + vector, lane]
        for step in range(targets.size):
            target, first, second, third = targets[step], sources[step, 0], sources[step, 1], sources[step, 2]
            if second < 0:
                for vector in range(BLOCK):
                    slots_of_block[target, vector] = slots_of_block[first, vector]
            elif third < 0:
                for vector in range(BLOCK):
                    slots_of_block[target, vector] = slots_of_block[first, vector] + slots_of_block[second, vector]
            else:
                for vector in range(BLOCK):
                    slots_of_block[target, vector] = (
                        slots_of_block[first, vector] + slots_of_block[second, vector]
                    ) + slots_of_block[third, vector]
        for vector in range(width):
            for outlet in range(outlets.size):
                sums[start + vector, outlet] = slots_of_block[outlets[outlet], vector]
    return sums


@njit(cache=True, nogil=True)
def groups_of(vec_ids: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Runs of one id of at least 0: their ids, first and last lanes, and the number of the run in each lane (-1: none)."""
    ids, starts, ends, of_lane = np.empty_like(vec_ids), np.empty_like(vec_ids), np.empty_like(vec_ids), np.full_like(vec_ids, -1)
    count = 0
    for lane in range(vec_ids.size):
        if vec_ids[lane] < 0:
            continue
        if lane == 0 or vec_ids[lane] != vec_ids[lane - 1]:
            ids[count], starts[count] = vec_ids[lane], lane
            count += 1
        ends[count - 1], of_lane[lane] = lane, count - 1
    return ids[:count], starts[:count], ends[:count], of_lane


@njit(cache=True, nogil=True)
def fan_route(of_lane: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """The mode of each adder of FAN, and the levels of the links that its left and right multiplexers take (0: none or a lane).

    The link of level l is 2^(l - 1) adders long. On either side the longest is taken that stays among the dot product's own adders,
    which are those from its first lane to the one before its last; the shortest also where the neighbour only bypasses a lane.
    """
    adders = of_lane.size - 1
    mode, left, right = np.full(adders, IDLE), np.zeros(adders, np.int64), np.zeros(adders, np.int64)
    for adder in range(adders):
        group, level = of_lane[adder], 0
        while (adder >> level) & 1:
            level += 1
        if group >= 0 and group == of_lane[adder + 1]:
            mode[adder] = ADD
            if level:
                left[adder] = right[adder] = 1
            while left[adder] < level and adder - (1 << left[adder]) >= starts[group]:
                left[adder] += 1
            while right[adder] < level and adder + (1 << right[adder]) < ends[group]:
                right[adder] += 1
        elif level == 0 and max(group, of_lane[adder + 1]) >= 0:
            mode[adder] = BYPASS
    return mode, left, right


@njit(cache=True, nogil=True)
def fan_steps(mode: Ints, left: Ints, right: Ints, of_lane: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Follows a route of FAN level by level.

    Cycles, targets and sources of its steps, and of each group the outlet and the cycle of its sum.
    """
    lanes, count = of_lane.size, 0
    cycles, targets = np.empty(2 * lanes, np.int64), np.empty(2 * lanes, np.int64)
    sources = np.full((2 * lanes, 3), -1, np.int64)
    outlets, finish = np.full(starts.size, -1, np.int64), np.zeros(starts.size, np.int64)
    level = 0
    while (1 << level) < lanes:
        for adder in range((1 << level) - 1, lanes - 1, 2 << level):
            register = lanes + 3 * adder
            if mode[adder] == BYPASS:
                for side in range(2):
                    group = of_lane[adder + side]
                    if group >= 0:
                        cycles[count], targets[count], sources[count, 0] = 1, register + side, adder + side
                        count += 1
                        if starts[group] == ends[group]:
                            outlets[group], finish[group] = register + side, 1
            elif mode[adder] == ADD:
                cycles[count], targets[count] = level + 1, register
                if level == 0:
                    sources[count, 0], sources[count, 1] = adder, adder + 1
                else:
                    before, after = adder - (1 << (left[adder] - 1)), adder + (1 << (right[adder] - 1))
                    sources[count, 0] = lanes + 3 * before + (1 if mode[before] == BYPASS else 0)
                    sources[count, 1] = lanes + 3 * after
                count += 1
                outlets[of_lane[adder]], finish[of_lane[adder]] = register, level + 1  # the highest adder comes last
        level += 1
    return cycles[:count], targets[:count], sources[:count], outlets, finish


@njit(cache=True, nogil=True)
def art_steps(of_lane: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Routes ART, level by level; the results are those of `fan_steps`.

    A node adds the parts of one group that its children send up. A part that belongs to the neighbour with another parent, and to
    no other child of this node, goes to that neighbour; where both neighbours could send it, the right one does. Any other
    unfinished part goes up. Outlet -1: the group has no route (by the exhaustive test, never).
    """
    lanes = of_lane.size
    cycles, targets = np.empty(4 * lanes, np.int64), np.empty(4 * lanes, np.int64)
    sources = np.full((4 * lanes, 3), -1, np.int64)
    outlets, finish = np.full(starts.size, -1, np.int64), np.zeros(starts.size, np.int64)
    up, up_group, up_size = (
        np.arange(lanes),
        of_lane.copy(),
        np.ones(lanes, np.int64),
    )  # what each child sends up: slot, group, lanes in it
    sideways = np.empty(lanes, np.int64)  # the group that each node sends sideways, -1: none
    count, level, nodes = 0, 0, lanes // 2
    while nodes:
        for node in range(nodes - 1, -1, -1):  # from the right: an odd node must know what its right neighbour sends
            sideways[node] = -1
            left, right = up_group[2 * node], up_group[2 * node + 1]
            first_lane, next_lane = node << (level + 1), (node + 1) << (level + 1)
            if left == right:
                continue
            child = -1
            if node % 2 == 0 and left >= 0 and starts[left] < first_lane:
                child = 2 * node
            elif node % 2 == 1 and right >= 0 and ends[right] >= next_lane and sideways[node + 1] != right:
                child = 2 * node + 1
            if child >= 0:
                sideways[node] = up_group[child]
                cycles[count], targets[count] = level + 1, lanes + 3 * (((2 * node + 1) << level) - 1) + 1
                sources[count, 0] = up[child]
                count += 1
        sent, sent_group, sent_size = np.full(nodes, -1), np.full(nodes, -1), np.zeros(nodes, np.int64)
        for node in range(nodes):
            base = lanes + 3 * (((2 * node + 1) << level) - 1)
            other = node - 1 if node % 2 == 0 else node + 1
            received = sideways[other] if 0 <= other < nodes else -1
            received_child = 2 * other + (1 if other % 2 else 0)
            out_taken = False
            for side in range(2):
                group = up_group[2 * node + side]
                if group < 0 or group == sideways[node] or (side == 1 and group == up_group[2 * node]):
                    continue
                size, inputs = up_size[2 * node + side], 1
                sources[count, 0] = up[2 * node + side]
                if side == 0 and up_group[2 * node + 1] == group:
                    sources[count, inputs] = up[2 * node + 1]
                    size += up_size[2 * node + 1]
                    inputs += 1
                if received == group:
                    sources[count, inputs] = lanes + 3 * (((2 * other + 1) << level) - 1) + 1
                    size += up_size[received_child]
                port = 0
                if size == ends[group] - starts[group] + 1:
                    port, out_taken = (0 if out_taken else 2), True
                    outlets[group], finish[group] = base + port, level + 1
                else:
                    sent[node], sent_group[node], sent_size[node] = base, group, size
                cycles[count], targets[count] = level + 1, base + port
                count += 1
        up, up_group, up_size = sent, sent_group, sent_size
        level, nodes = level + 1, nodes // 2
    return cycles[:count], targets[:count], sources[:count], outlets, finish
