"""TensorDash in registers and gates (MICRO 2020), generated from the simulator's `arrays.tensordash.scheduler.Scheduler`.

In reading order: `scheduler` is one cycle's MS and AS, without registers; `staging_buffer` the rows of an operand and the
multiplexers that read them; `row_scheduler` a row's zero vector around the scheduler; `dot_product` multipliers, adder tree and
accumulator; `element` and `tile` put them together. `streams` makes inputs and says what the simulator expects of them.
"""
