"""Floating-point adders and multipliers, shared by all designs, so that their gates can be compared.

`formats` says what a number is and computes with exact integers (the numeric twin); `adder` and `multiplier` are the circuits,
`pipeline` the registers inside them. New units belong here when two designs need them.
"""
