"""What `benchmarks/mapping.py` compares: `cases` draws products and machines, `measure` maps them with a given version of
trainyard, `brute_force` finds the least that any tile of theirs takes, `zigzag_peer` asks ZigZag."""
