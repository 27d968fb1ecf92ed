-- Schema 3: deliveries of exports to the targets of [[deliver]].

-- An export that is carried to a target. What waits is begun, what runs has a process, dropped is what nobody wants any more.
CREATE TABLE shipment (
    id            INTEGER PRIMARY KEY,
    job           TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    target        TEXT NOT NULL,               -- its name in the configuration
    state         TEXT NOT NULL DEFAULT 'waiting',
    variants      TEXT NOT NULL DEFAULT '[]',  -- those that are carried; none: all that were published
    move          TEXT NOT NULL DEFAULT 'move' CHECK (move IN ('move', 'keep', 'force')),
    -- 1: a person asked for it.
    by_hand       INTEGER NOT NULL DEFAULT 0 CHECK (by_hand IN (0, 1)),
    -- 1: the export was made anew while it was carried, so that it is carried again.
    again         INTEGER NOT NULL DEFAULT 0 CHECK (again IN (0, 1)),
    attempts      INTEGER NOT NULL DEFAULT 0,
    failures      INTEGER NOT NULL DEFAULT 0,  -- attempts in a row that failed
    failing_since REAL,
    retry_at      REAL,
    retry_delay   REAL,
    fault         TEXT,
    -- Keyed digest of the target's settings, as they were when it failed for good.
    terms         TEXT,
    resume        TEXT NOT NULL DEFAULT '{}',  -- what earlier attempts noted
    receipt       TEXT,
    reason        TEXT,                        -- why it was dropped
    entered       TEXT NOT NULL,
    started       TEXT,
    ended         TEXT,
    UNIQUE (job, target)
) STRICT;

CREATE INDEX shipment_by_state ON shipment (state, target);

INSERT INTO transition (kind, old, new) VALUES
    ('shipment', 'waiting', 'running'),
    ('shipment', 'waiting', 'failed'),     -- its export is gone
    ('shipment', 'waiting', 'dropped'),
    ('shipment', 'running', 'waiting'),
    ('shipment', 'running', 'delivered'),
    ('shipment', 'running', 'failed'),
    ('shipment', 'running', 'dropped'),
    ('shipment', 'delivered', 'waiting'),  -- the export was made anew, or a person wants it again
    ('shipment', 'failed', 'waiting'),
    ('shipment', 'failed', 'dropped'),
    ('shipment', 'dropped', 'waiting');

CREATE TRIGGER shipment_transition BEFORE UPDATE OF state ON shipment
WHEN OLD.state <> NEW.state
 AND NOT EXISTS (SELECT 1 FROM transition WHERE kind = 'shipment' AND old = OLD.state AND new = NEW.state)
BEGIN
    SELECT RAISE(ABORT, 'illegal transition of a shipment');
END;
