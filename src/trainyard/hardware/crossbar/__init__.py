"""DIRECT's network: a hierarchy of crossbars that connects DPUs without a host.

In reading order: `hierarchy` is the part; `exchanges` the interface of both fidelities, with the simulated one; `collectives` turns
exchanges into messages, whose rules are in `messages`; `analytic` is the closed form (Eq. 2); `costs` has energy and area.
"""
