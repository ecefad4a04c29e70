"""Results for people and for other tools. rich, plotly, pandas and pyarrow are imported where they are used.

Text: `lines` (facts and breakdowns), `assumptions` (which matter), `tables`, `terminal`, `explain`, `marginal` (what 10 % more of
a resource is worth), `savings` (what tensors that stay on chip save), `summaries` (of models, and of what changed between two
results).
Plots: `colours`, `bars`, `roofline`, `spans`, `tornado`, listed in `plots`. Pages: `page`. Nodes: `nodes`, drawn by `topology`.
Timelines: `tasks`. Rows: `frames`. `traces` are files for other programs.
`mapping` shows loop nests and writes them for Timeloop.
`walkthroughs` draws the papers' mechanisms on small examples. A new plot is a function that returns a figure, with a row in
`plots.ALL`.
"""
