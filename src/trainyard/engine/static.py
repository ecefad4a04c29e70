"""`run`: a plan on the compiled clock."""

from __future__ import annotations

from trainyard.engine.timeline import Timeline
from trainyard.ir.plan import Plan


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
    from trainyard.engine.compiled import schedule  # brings numba, which takes a second to import

    columns = plan.columns()
    starts_ps, ends_ps = schedule(plan, columns)
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
