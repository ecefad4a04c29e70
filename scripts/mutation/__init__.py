"""Mutation testing of the repository: one small change to the code at a time, and the tests that should notice it.

In reading order: `operators` (which changes there are), `sample` (which of them are tried, by a seed), `lines` (which test runs
which line), `trial` (one change, in a forked process, against the tests of its line), `records` (what was found, one JSON object
a line), `page` (docs/mutation.md). `scripts/mutate.py` is the command.
"""
