"""The tables of the store, as numbered steps: step i takes a file of version i to version i + 1.

A step that has been delivered is never changed; a new one is appended. `store` runs what a file lacks.

    jobs      seq in order of arrival; fingerprinted requests by owner and key; `event` the last id of the job's events;
              `expires` the second since 1970 at which its clip goes, set at its end
    outputs   which ended job owns which finished file; clip = 0 for what lies beside a clip
    timings   what finished jobs took, for predictions; outlives their rows
    callbacks who is to be told of which job's end (`callback_rows`)
"""

from __future__ import annotations

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        key TEXT NOT NULL,
        status TEXT NOT NULL,
        event INTEGER NOT NULL,
        expires REAL,
        spec TEXT NOT NULL,
        state TEXT NOT NULL
    );
    CREATE INDEX jobs_by_owner ON jobs (owner, seq);
    CREATE UNIQUE INDEX jobs_by_key ON jobs (owner, key) WHERE key <> '';
    CREATE INDEX jobs_by_expiry ON jobs (status, expires);
    CREATE TABLE outputs (path TEXT PRIMARY KEY, job TEXT NOT NULL, clip INTEGER NOT NULL) WITHOUT ROWID;
    CREATE INDEX outputs_by_job ON outputs (job);
    CREATE TABLE timings (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        checkpoint TEXT NOT NULL,
        device TEXT NOT NULL,
        work TEXT NOT NULL
    );
    CREATE INDEX timings_by_engine ON timings (checkpoint, device, seq);
    """,
    """
    CREATE TABLE IF NOT EXISTS callbacks (
        job TEXT PRIMARY KEY,
        url TEXT NOT NULL,
        body BLOB NOT NULL,
        ended REAL NOT NULL,
        due REAL NOT NULL,
        attempts INTEGER NOT NULL,
        state TEXT NOT NULL
    ) WITHOUT ROWID;
    """,
)
