"""DIRECT's network: a hierarchy of crossbars that joins DPUs without a host.

In reading order: `hierarchy` is the part; `exchanges` the interface of both fidelities, `analytic` in closed form (Eq. 2),
`collectives` as messages, whose rules are in `messages`; `execution` sums real data along them; `costs` energy and area.
"""
