"""Disks that fill up: watched while the daemon runs, with what would make room."""
