"""`run`: a plan on the compiled clock, which is handed the plan's columns and the arrays it works in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainyard.engine.network import starved, too_long
from trainyard.engine.timeline import Timeline
from trainyard.ir.plan import LONGEST_PS, Columns, Plan

if TYPE_CHECKING:
    from trainyard.ir.plan import Integers
    from trainyard.kernels import schedule as kernel


def run(plan: Plan) -> Timeline:
    """The timeline of a plan; a plan that exceeds a pool's capacity lists it in `Timeline.overflows`.

    >>> plan = Plan()
    >>> device, copier, bus = plan.stream("device"), plan.stream("copy engine"), plan.link("bus", bytes_per_s=1e12)
    >>> fetch = plan.transfer([([bus], 300)], stream=copier)
    >>> forward = plan.task(device, 1000, after=[fetch])
    >>> timeline = run(plan)
    >>> timeline.end_ps, timeline.class_exposed()
    (1300, {'compute': 1000, 'synchronisation': 0, 'copy': 300, 'idle': 0})
    """
    columns = plan.columns()
    starts_ps, ends_ps = _schedule(plan, columns)
    timeline = Timeline(
        starts_ps=starts_ps,
        ends_ps=ends_ps,
        kinds=columns.kind,
        streams=columns.stream,
        tags=columns.tag,
        after_ends=columns.after_ends,
        after=columns.after,
        memory_events=columns.memory,
        stream_names=tuple(plan.streams),
        pools=tuple(plan.pools),
    )
    for pool in range(len(plan.pools)):
        timeline.memory(pool)  # raises if a plan frees more than it allocated
    return timeline


def _schedule(plan: Plan, columns: Columns) -> tuple[Integers, Integers]:
    """Start and end of every task; one pass where nothing is transferred, the event loop otherwise."""
    from trainyard.kernels import schedule as kernel  # brings numba, which takes a second to import

    dependencies = (columns.after_ends, columns.after, len(plan.streams))
    if not len(columns.flow_task):
        starts_ps, ends_ps = kernel.sweep(columns.stream, columns.duration_ps, *dependencies)
        return starts_ps, ends_ps
    tasks = _tasks(columns, kernel.followers(columns.stream, *dependencies))
    flows = _flows(plan, columns)
    status, flow = kernel.schedule(tasks, flows, _links(plan, len(columns.path)))
    if status != kernel.DONE:
        name = plan.links[columns.path[flows.first_hop[flow]]].name
        raise starved(name) if status == kernel.STARVED else too_long(name)
    return tasks.start, tasks.end


def _tasks(columns: Columns, followers: tuple[Integers, Integers, Integers]) -> kernel.Tasks:
    from trainyard.kernels import schedule as kernel

    count = len(columns.stream)
    first_follower, follower, waits = followers
    open_flows = np.bincount(columns.flow_task, minlength=count).astype(np.int64)
    return kernel.Tasks(
        duration=columns.duration_ps,
        first_flow=_firsts(np.cumsum(open_flows)),
        first_follower=first_follower,
        follower=follower,
        waits=waits,
        open_flows=open_flows,
        start=np.full(count, -1, np.int64),
        end=np.full(count, -1, np.int64),
    )


def _flows(plan: Plan, columns: Columns) -> kernel.Flows:
    from trainyard.kernels import schedule as kernel

    count = len(columns.flow_task)
    first_hop = _firsts(columns.path_ends)
    latency = np.array([link.latency_ps for link in plan.links], np.int64)[columns.path]
    if latency.sum(dtype=np.float64) >= LONGEST_PS:
        raise too_long(plan.links[columns.path[latency.argmax()]].name)
    return kernel.Flows(
        task=columns.flow_task,
        latency=np.add.reduceat(latency, first_hop[:-1]),
        first_hop=first_hop,
        link=columns.path,
        flow=np.repeat(np.arange(count), np.diff(first_hop)),
        left=columns.flow_bytes.copy(),
        left_fraction=np.zeros(count, np.int64),
        rate=np.zeros(count, np.int64),
        fresh_rate=np.zeros(count, np.int64),
        since=np.zeros(count, np.int64),
        end=np.full(count, -1, np.int64),
        reached=np.zeros(count, np.int64),
        stamp=np.zeros(count, np.int64),
    )


def _links(plan: Plan, hops: int) -> kernel.Links:
    from trainyard.kernels import schedule as kernel

    count = len(plan.links)
    return kernel.Links(
        capacity=np.array([link.bytes_per_s for link in plan.links], np.int64),
        first=np.full(count, -1, np.int64),
        following=np.full(hops, -1, np.int64),
        preceding=np.full(hops, -1, np.int64),
        crossing=np.zeros(count, np.int64),
        spare=np.zeros(count, np.int64),
        moving=np.zeros(count, np.int64),
        share=np.zeros(count, np.int64),
        full=np.zeros(count, np.int64),
        changed=np.zeros(count, np.int64),
        stamp=np.zeros(count, np.int64),
        reached=np.zeros(count, np.int64),
        visited=np.zeros(count, np.int64),
    )


def _firsts(ends: Integers) -> Integers:
    """The first position of every row, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), ends])
