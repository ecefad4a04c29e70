"""TensorDash in registers and gates (MICRO 2020), generated from the simulator's `arrays.tensordash.scheduler.Scheduler`.

In reading order: `scheduler` is one cycle's MS and AS, without registers; `staging_buffer` the rows of an operand and the
multiplexers that read them; `row_scheduler` a row's zero vector around the scheduler; `dot_product` multipliers, adder tree and
accumulator; `element` and `tile` put them together, and `baseline` is the dense tile beside them. `parameters` are those of the
command line; `streams` makes inputs, `recorded` takes them from shipped training runs, and both say what the simulator expects.
"""
