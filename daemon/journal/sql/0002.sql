-- A job may end as superseded while it runs, with the reason; what a run's own configuration was told stays with the
-- job; checkpoints that were deleted before they could be pinned are remembered.

INSERT INTO transition (kind, old, new) VALUES ('job', 'running', 'superseded');

ALTER TABLE job ADD COLUMN reason TEXT;
ALTER TABLE job ADD COLUMN warnings TEXT NOT NULL DEFAULT '[]';
-- 1: superseded, and its child, staging and pin are not cleared away yet.
ALTER TABLE job ADD COLUMN untidy INTEGER NOT NULL DEFAULT 0 CHECK (untidy IN (0, 1));

CREATE INDEX job_untidy ON job (id) WHERE untidy = 1;
CREATE INDEX job_by_content ON job (step, json_extract(checkpoint, '$.digest'));
CREATE INDEX seen_by_job ON seen (job);

-- lived: seconds, between the first look and the one that found it gone.
CREATE TABLE lost (
    id         INTEGER PRIMARY KEY,
    path       TEXT NOT NULL,
    first_seen TEXT NOT NULL,
    last_seen  TEXT NOT NULL,
    lived      REAL NOT NULL,
    at         TEXT NOT NULL
) STRICT;
