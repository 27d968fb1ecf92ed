-- Schema 1 of the journal. Times are ISO 8601 in UTC; *_at that are compared are seconds since the epoch. Sizes are in bytes.

CREATE TABLE seen (
    path        TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    verdict     TEXT NOT NULL CHECK (verdict IN ('taken', 'known', 'skipped', 'damaged')),
    job         TEXT,
    at          TEXT NOT NULL
) STRICT;

-- Checkpoints that were deleted before they could be pinned. lived: seconds, between the first look and the one that found it gone.
CREATE TABLE lost (
    id         INTEGER PRIMARY KEY,
    path       TEXT NOT NULL,
    first_seen TEXT NOT NULL,
    last_seen  TEXT NOT NULL,
    lived      REAL NOT NULL,
    at         TEXT NOT NULL
) STRICT;

CREATE TABLE job (
    id           TEXT PRIMARY KEY,
    identity     TEXT NOT NULL,
    work_digest  TEXT NOT NULL,
    root         TEXT NOT NULL,
    run          TEXT NOT NULL,
    step         INTEGER NOT NULL,
    checkpoint   TEXT NOT NULL,
    work         TEXT NOT NULL,
    pin          TEXT NOT NULL,
    target       TEXT NOT NULL,
    state        TEXT NOT NULL DEFAULT 'pending',
    base         TEXT,
    created      TEXT NOT NULL,
    started      TEXT,
    ended        TEXT,
    -- Why it was superseded or cancelled, or why its export was not published.
    reason       TEXT,
    -- What a run's own configuration was told.
    warnings     TEXT NOT NULL DEFAULT '[]',
    -- 1: superseded or cancelled, and its child, staging and pin are not cleared away yet.
    untidy       INTEGER NOT NULL DEFAULT 0 CHECK (untidy IN (0, 1)),
    -- Which of the run's waiting jobs comes first: 1 the newest step, 0 the one that was entered first.
    newest_first INTEGER NOT NULL DEFAULT 0 CHECK (newest_first IN (0, 1)),
    priority     INTEGER NOT NULL DEFAULT 0,
    paused       INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
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
    -- Digest of all that determines the stage's output, written at the claim.
    key         TEXT,
    -- How often the daemon died while the stage ran.
    crashes     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, name)
) STRICT;

CREATE TABLE attempt (
    job         TEXT NOT NULL,
    stage       TEXT NOT NULL,
    number      INTEGER NOT NULL,
    strategy    TEXT NOT NULL,
    outcome     TEXT CHECK (outcome IN ('succeeded', 'retryable', 'permanent', 'interrupted')),
    folder      TEXT NOT NULL,
    staging     TEXT NOT NULL,
    estimate    INTEGER,
    -- What its executor calls it, wherever it runs.
    executor_id TEXT,
    started     TEXT NOT NULL,
    ended       TEXT,
    fault       TEXT,
    PRIMARY KEY (job, stage, number),
    FOREIGN KEY (job, stage) REFERENCES stage (job, name) ON DELETE CASCADE
) STRICT;

-- What stages really took.
CREATE TABLE measured (
    id           INTEGER PRIMARY KEY,
    stage        TEXT NOT NULL,
    parameters   INTEGER NOT NULL,
    stored_bytes INTEGER NOT NULL,
    peak         INTEGER NOT NULL,
    written      INTEGER NOT NULL,
    seconds      REAL NOT NULL,
    at           TEXT NOT NULL
) STRICT;

-- A message's state follows from its deliveries.
CREATE TABLE outbox (
    id        INTEGER PRIMARY KEY,
    job       TEXT NOT NULL,
    kind      TEXT NOT NULL,
    title     TEXT NOT NULL,
    body      TEXT NOT NULL,
    state     TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'abandoned')),
    created   TEXT NOT NULL,
    delivered TEXT
) STRICT;

-- Who is told. A service is known by a keyed digest of its URL alone, since URLs hold secrets.
CREATE TABLE target (
    digest     TEXT PRIMARY KEY,
    place      TEXT NOT NULL,               -- for people: its key in the configuration, and the kind of service
    failures   INTEGER NOT NULL DEFAULT 0,  -- attempts in a row that failed, whatever the message
    next_at    REAL NOT NULL DEFAULT 0,
    last_error TEXT
) STRICT;

-- Each service has its own state of each message, so that one that fails or hangs holds up no other, and none is told twice.
CREATE TABLE delivery (
    message  INTEGER NOT NULL REFERENCES outbox (id) ON DELETE CASCADE,
    target   TEXT NOT NULL,
    state    TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'abandoned', 'dropped')),
    attempts INTEGER NOT NULL DEFAULT 0,
    ended    TEXT,
    PRIMARY KEY (message, target)
) STRICT;

-- What the daemon as a whole was told, for example that it is paused, and what it remembers about itself.
CREATE TABLE control (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    at    TEXT NOT NULL
) STRICT;

CREATE INDEX seen_by_job ON seen (job);
CREATE INDEX job_by_state ON job (state, created);
CREATE INDEX job_by_run ON job (run, step);
CREATE INDEX job_by_target ON job (target);
CREATE INDEX job_by_content ON job (step, json_extract(checkpoint, '$.digest'));
CREATE INDEX job_untidy ON job (id) WHERE untidy = 1;
CREATE INDEX job_queue ON job (state, paused, root, run, priority DESC, created);
CREATE INDEX job_preferred ON job (priority, created) WHERE state = 'pending' AND priority > 0;
CREATE INDEX job_served ON job (root, run, started);
CREATE INDEX attempt_open ON attempt (job) WHERE outcome IS NULL;
CREATE INDEX measured_by_stage ON measured (stage, id);
CREATE INDEX outbox_by_state ON outbox (state);
CREATE INDEX delivery_pending ON delivery (target, message) WHERE state = 'pending';
CREATE INDEX delivery_abandoned ON delivery (target) WHERE state = 'abandoned';

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
    ('job', 'pending', 'cancelled'),
    ('job', 'running', 'succeeded'),
    ('job', 'running', 'partial'),
    ('job', 'running', 'failed'),
    ('job', 'running', 'superseded'),  -- with the reason
    ('job', 'running', 'cancelled'),
    ('job', 'succeeded', 'pending'),  -- done again by another configuration
    ('job', 'partial', 'pending'),
    ('job', 'failed', 'pending'),
    ('job', 'cancelled', 'pending'),
    ('stage', 'waiting', 'running'),
    ('stage', 'waiting', 'succeeded'),  -- an output with the same key was kept and is used again
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
