"""Notifications: the outbox is sent by a child process for each address, and what could not be sent is kept for the next try."""
