"""Notifications: one child process sends what the outbox holds, and what could not be sent is kept for the next try."""
