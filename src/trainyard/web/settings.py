"""The limits of a server. Every one is refused by one byte, one job or one second too many, with an error that names it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MB = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits and places; sizes in bytes, times in seconds."""

    # fmt: off
    host: str               = "127.0.0.1"
    stores: Path | None     = None          # the folder of sweep stores; the working folder if None
    upload_bytes: int       = 64 * MB       # of one upload
    uploads: int            = 32            # stored at a time
    uploads_bytes: int      = 256 * MB      # of all uploads together, unpacked
    unpacked_bytes: int     = 256 * MB      # of one compressed upload
    receiving: int          = 4             # uploads under way at a time, others wait
    receiving_s: float      = 300.0         # of one of them
    idle_s: float           = 20.0          # between two blocks of a body
    body_s: float           = 30.0          # of a JSON request
    body_bytes: int         = 64 * 1024     # of a JSON request
    workers: int            = 0             # that run jobs; 0: one a core, two at most
    warm: bool              = True          # workers import what a run needs before the first one is asked for
    queued: int             = 64            # jobs that wait
    jobs_kept: int          = 256           # finished ones that can still be asked for
    job_s: float            = 1800.0        # of one job
    desk_s: float           = 30.0          # of one look at a machine, a file, a ledger
    desk_waiting: int       = 32            # such looks that wait
    memory_bytes: int       = 8192 * MB     # address space of one worker
    cache_bytes: int        = 64 * MB       # of results, compressed
    cache_results: int      = 512
    results: Path | None    = None          # the folder where finished results are kept; in memory alone if None
    results_bytes: int      = 256 * MB      # of that folder
    results_kept: int       = 2048
    rows: int               = 20_000        # of a store in one answer
    # fmt: on

    @property
    def job_workers(self) -> int:
        return self.workers or min(2, os.cpu_count() or 1)
