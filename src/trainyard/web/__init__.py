"""The page that `trainyard serve` opens: a FastAPI server over worker processes. The server itself computes nothing.

| module | what |
|---|---|
| `settings` | the limits of a server |
| `app` | the routes; `assets`, the page's own files |
| `security` | who may ask, and what a browser may do with an answer |
| `requests`, `guard` | what a visitor may ask for and may write as a machine |
| `jobs`, `kept_results` | the queue, and the cache of results, in memory and on disk |
| `connections`, `folders` | requests that are never finished; the private folder of a server, and those of killed ones |
| `processes`, `frames` | the server's side of a worker, and the messages between them |
| `worker`, `tasks` | the worker process, and what it does: runs, what-ifs, ledgers, looks at machines |
| `views` | answers as JSON, with figures |
| `uploads`, `recognition`, `stores` | uploaded files, what they are, sweep stores |

May import every room but `cli`. A new view is a task, a row in `tasks.TASKS` and a route in `app`.
"""
