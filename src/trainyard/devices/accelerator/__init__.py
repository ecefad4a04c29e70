"""An accelerator: an array with a scratchpad, DRAM and a clock.

In reading order: `device` is the part and its fields, `consistency` refuses those that contradict each other; `costs` is what a
demand costs (cycles, bytes, events), put together by `counting`; `choices` the mapping that a cost was counted for, and
`loop_nests` how it is shown; `energy` joules of events, `area` its square metres; `goals` what the search makes least;
`constrained` refuses mappings that cannot hold. `batch_costs` has the costs of all demands of a step at once, as columns, which a
step and a policy decide (`step_shape`) before any machine does, and `event_counts` their events; `family` what machines share that
differ in numbers such as bandwidth and technology alone.
Variants: `masked_tiles` (zeros, tile by tile), `sparse_tiles` (which tiles they get), `structured` (n:m weights), `side_by_side`
(products on parts of an array), `ordered` (IGO's orders), `chained` (two layers in one go), `between` (tensors that stay on chip
between Works), `sliced` (blocks of Works, slice by slice).
"""
