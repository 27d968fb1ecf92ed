"""The SQLite file under the journal: its connection, checks, backups, upgrades and errors."""
