-- Who is told: each service has its own state of each message, so that one that fails or hangs holds up no other, and none is told twice.
-- A service is known by a keyed digest of its URL alone, since URLs hold secrets.

CREATE TABLE target (
    digest     TEXT PRIMARY KEY,
    place      TEXT NOT NULL,               -- for people: its key in the configuration, and the kind of service
    failures   INTEGER NOT NULL DEFAULT 0,  -- attempts in a row that failed, whatever the message
    next_at    REAL NOT NULL DEFAULT 0,
    last_error TEXT
) STRICT;

CREATE TABLE delivery (
    message  INTEGER NOT NULL REFERENCES outbox (id) ON DELETE CASCADE,
    target   TEXT NOT NULL,
    state    TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'abandoned', 'dropped')),
    attempts INTEGER NOT NULL DEFAULT 0,
    ended    TEXT,
    PRIMARY KEY (message, target)
) STRICT;

CREATE INDEX delivery_pending ON delivery (target, message) WHERE state = 'pending';
CREATE INDEX delivery_abandoned ON delivery (target) WHERE state = 'abandoned';

-- A message's state follows from its deliveries; one that was pending before has none until the daemon knows whom to tell.
DROP INDEX outbox_by_state;
ALTER TABLE outbox DROP COLUMN next_at;
ALTER TABLE outbox DROP COLUMN attempts;
ALTER TABLE outbox DROP COLUMN last_error;
CREATE INDEX outbox_by_state ON outbox (state);
