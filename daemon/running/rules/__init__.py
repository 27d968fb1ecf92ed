"""Pure decisions: what is ready, retry, estimate, admission, resume key."""
