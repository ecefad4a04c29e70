"""Floating-point adders and multipliers, shared by all designs, so that their gates can be compared.

`formats` says what a number is and computes with exact integers (the numeric twin); `operands` takes a number apart, `adder` and
`multiplier` are the circuits, `pipeline` the registers inside them; `stimulus` draws numbers that reach the corners. New units
belong here when two designs need them.
"""
