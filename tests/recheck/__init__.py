"""Checking published artifacts again by the answers that an export keeps, and what other programs made."""
