"""What is synthesised for the papers' figures: designs at their sizes, with inputs that keep them busy.

`case` is one measurement (a circuit, its inputs, the parts that are told apart), `sigma`, `tensordash` and `direct` list those of a
paper, `table` runs all of them and writes the file that `trainyard.papers.gates` reads. A new measurement is an entry of a CASES.
"""
