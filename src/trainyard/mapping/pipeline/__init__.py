"""Pipeline parallelism: `schedule` is the order of microbatches on each device, `stages` assigns Works to stages."""
