"""The SQLite record: one class per table, one owner thread."""
