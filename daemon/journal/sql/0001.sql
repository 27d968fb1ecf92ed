-- First schema of the journal. Times are ISO 8601 in UTC; *_at that are compared are seconds since the epoch.

CREATE TABLE seen (
    path        TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    verdict     TEXT NOT NULL CHECK (verdict IN ('taken', 'known', 'skipped', 'damaged')),
    job         TEXT,
    at          TEXT NOT NULL
) STRICT;

CREATE TABLE job (
    id          TEXT PRIMARY KEY,
    identity    TEXT NOT NULL,
    work_digest TEXT NOT NULL,
    run         TEXT NOT NULL,
    step        INTEGER NOT NULL,
    checkpoint  TEXT NOT NULL,
    work        TEXT NOT NULL,
    pin         TEXT NOT NULL,
    target      TEXT NOT NULL,
    state       TEXT NOT NULL DEFAULT 'pending',
    base        TEXT,
    created     TEXT NOT NULL,
    started     TEXT,
    ended       TEXT,
    UNIQUE (identity, work_digest)
) STRICT;

CREATE TABLE stage (
    job         TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    name        TEXT NOT NULL,
    position    INTEGER NOT NULL,
    state       TEXT NOT NULL DEFAULT 'waiting',
    attempts    INTEGER NOT NULL DEFAULT 0,
    failures    INTEGER NOT NULL DEFAULT 0,
    retry_at    REAL,
    retry_delay REAL,
    folder      TEXT,
    result      TEXT,
    fault       TEXT,
    PRIMARY KEY (job, name)
) STRICT;

CREATE TABLE attempt (
    job             TEXT NOT NULL,
    stage           TEXT NOT NULL,
    number          INTEGER NOT NULL,
    strategy        TEXT NOT NULL,
    outcome         TEXT CHECK (outcome IN ('succeeded', 'retryable', 'permanent', 'interrupted')),
    folder          TEXT NOT NULL,
    staging         TEXT NOT NULL,
    estimate        INTEGER,
    pid             INTEGER,
    process_started REAL,
    started         TEXT NOT NULL,
    ended           TEXT,
    fault           TEXT,
    PRIMARY KEY (job, stage, number),
    FOREIGN KEY (job, stage) REFERENCES stage (job, name) ON DELETE CASCADE
) STRICT;

CREATE TABLE outbox (
    id         INTEGER PRIMARY KEY,
    job        TEXT NOT NULL,
    kind       TEXT NOT NULL,
    title      TEXT NOT NULL,
    body       TEXT NOT NULL,
    state      TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'abandoned')),
    attempts   INTEGER NOT NULL DEFAULT 0,
    next_at    REAL NOT NULL DEFAULT 0,
    last_error TEXT,
    created    TEXT NOT NULL,
    delivered  TEXT
) STRICT;

CREATE INDEX job_by_state ON job (state, created);
CREATE INDEX job_by_run ON job (run, step);
CREATE INDEX outbox_by_state ON outbox (state, next_at);

-- The legal transitions, enforced for every writer, whoever it is.
CREATE TABLE transition (
    kind TEXT NOT NULL,
    old  TEXT NOT NULL,
    new  TEXT NOT NULL,
    PRIMARY KEY (kind, old, new)
) STRICT;

INSERT INTO transition (kind, old, new) VALUES
    ('job', 'pending', 'running'),
    ('job', 'pending', 'superseded'),
    ('job', 'running', 'succeeded'),
    ('job', 'running', 'partial'),
    ('job', 'running', 'failed'),
    ('job', 'partial', 'pending'),
    ('job', 'failed', 'pending'),
    ('stage', 'waiting', 'running'),
    ('stage', 'waiting', 'failed'),
    ('stage', 'waiting', 'skipped'),
    ('stage', 'running', 'succeeded'),
    ('stage', 'running', 'failed'),
    ('stage', 'running', 'waiting'),
    ('stage', 'succeeded', 'waiting'),
    ('stage', 'failed', 'waiting'),
    ('stage', 'skipped', 'waiting');

CREATE TRIGGER job_transition BEFORE UPDATE OF state ON job
WHEN OLD.state <> NEW.state
 AND NOT EXISTS (SELECT 1 FROM transition WHERE kind = 'job' AND old = OLD.state AND new = NEW.state)
BEGIN
    SELECT RAISE(ABORT, 'illegal transition of a job');
END;

CREATE TRIGGER stage_transition BEFORE UPDATE OF state ON stage
WHEN OLD.state <> NEW.state
 AND NOT EXISTS (SELECT 1 FROM transition WHERE kind = 'stage' AND old = OLD.state AND new = NEW.state)
BEGIN
    SELECT RAISE(ABORT, 'illegal transition of a stage');
END;
