"""Results for people: terminal tables, explanations, plots, one-file HTML pages, Perfetto traces, data frames.

Reads `results` and `timeline` and nothing below them; no machine, no step, no torch. rich, plotly, pandas and pyarrow are imported
where they are used. A new plot is a function in `bars`, `roofline` or `spans` that returns a figure, listed in `plots.ALL`.
"""
