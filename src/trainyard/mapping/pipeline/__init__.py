"""Pipeline parallelism: `schedule` says who does which microbatch when, `stages` which Work is in which stage."""
