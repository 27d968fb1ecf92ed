"""Which tensor of the output gets which operation, and in which file it is written. Reads headers, not weights."""
