"""The papers: their claims, the experiments that measure them, and the verdicts.

In reading order: `evidence` (what must stand behind an open or undefined claim), `ledger` (claims, measurements, verdicts),
`changes` (what was changed after results had been seen), `headlines` (what a reader sees first of a paper), `bench` (what a paper
offers, and its claims held against its experiments), one package for each paper (`sigma`, `tensordash`, `igo`, `mcdla`, `direct`),
`gates` (what synthesis of our circuits says of a claim), `figures` (charts with the paper's values), `experiment_cache` (results
on disk), `shipped` (results that come with the package), `pages`, `illustrated` and `tables` (the ledger as Markdown, HTML and on a
terminal), `provenance` (the source of each number of a preset), `processes` (a pool for experiments).

Experiments run machines that are built elsewhere: a paper's package never models a mechanism. A new paper is a package whose
`__init__` defines `PAPER`, a row in `bench.PAPERS`, and its claims in `claims.toml`.
"""
