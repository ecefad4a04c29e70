"""The page that `trainyard serve` opens: a FastAPI server (`app.py`) over worker processes (`processes.py`, `worker.py`).

The server itself computes nothing: jobs and every look into a machine, a file or a ledger run in workers with limits of time and
memory (`tasks.py`). May import every room but `cli`. A new view is a task, a row in `tasks.TASKS` and a route in `app.py`.
"""
