"""Deliveries: which exports are carried to which target, and the queue that has it done, one process an attempt."""
