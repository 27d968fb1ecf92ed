-- Schema 2: notifications to targets of which each wants events of its own, and quiet hours.

-- What programs are told of a message: JSON with its events, its run and more.
ALTER TABLE outbox ADD COLUMN about TEXT NOT NULL DEFAULT '{}';
-- What a target is told of: JSON with "on" (events) and "runs" (patterns); without them everything.
ALTER TABLE target ADD COLUMN wants TEXT NOT NULL DEFAULT '{}';
-- NULL: sent by itself. 0: held while the target's quiet hours last. Otherwise the message that stands for it.
ALTER TABLE delivery ADD COLUMN carrier INTEGER;
-- Why the last attempt failed.
ALTER TABLE delivery ADD COLUMN error TEXT;
CREATE INDEX delivery_sendable ON delivery (target, message) WHERE state = 'pending' AND carrier IS NULL;
CREATE INDEX delivery_carried ON delivery (target, carrier) WHERE carrier IS NOT NULL;
