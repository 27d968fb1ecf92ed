-- An attempt is known by what its executor calls it, wherever it runs; what was started before keeps its process in the form of the
-- executor of this box (`daemon.running.workers.executor`).

ALTER TABLE attempt ADD COLUMN executor_id TEXT;
UPDATE attempt SET executor_id = 'local:' || pid || ':' || COALESCE(process_started, 0.0) WHERE pid IS NOT NULL;
ALTER TABLE attempt DROP COLUMN pid;
ALTER TABLE attempt DROP COLUMN process_started;
