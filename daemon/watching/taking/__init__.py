"""From a complete checkpoint to a job in the journal: selection, pin, identity, the place of its export."""
