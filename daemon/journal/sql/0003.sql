-- Cancelled and paused jobs, a fair queue, resume keys, stages that a crash of the daemon keeps interrupting, and what
-- stages really took.

INSERT INTO transition (kind, old, new) VALUES
    ('job', 'pending', 'cancelled'),
    ('job', 'running', 'cancelled'),
    ('job', 'cancelled', 'pending'),
    ('job', 'succeeded', 'pending'),  -- done again by another configuration
    ('stage', 'waiting', 'succeeded');  -- an output with the same key was kept and is used again

ALTER TABLE job ADD COLUMN root TEXT NOT NULL DEFAULT '';
UPDATE job SET root = json_extract(checkpoint, '$.root');
-- Which of the run's waiting jobs comes first: 1 the newest step, 0 the one that was entered first.
ALTER TABLE job ADD COLUMN newest_first INTEGER NOT NULL DEFAULT 0 CHECK (newest_first IN (0, 1));
ALTER TABLE job ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE job ADD COLUMN paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1));

-- Digest of all that determines the stage's output, written at the claim.
ALTER TABLE stage ADD COLUMN key TEXT;
-- How often the daemon died while the stage ran.
ALTER TABLE stage ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0;

-- Sizes in bytes.
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

-- What people told the daemon as a whole, for example that it is paused.
CREATE TABLE control (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    at    TEXT NOT NULL
) STRICT;

CREATE INDEX job_queue ON job (state, paused, root, run, priority DESC, created);
CREATE INDEX job_preferred ON job (priority, created) WHERE state = 'pending' AND priority > 0;
CREATE INDEX job_served ON job (root, run, started);
CREATE INDEX attempt_open ON attempt (job) WHERE outcome IS NULL;
CREATE INDEX measured_by_stage ON measured (stage, id);
