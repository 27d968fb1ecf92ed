"""From the journal's facts to the report as data."""
