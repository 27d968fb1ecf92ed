"""Fsck, and how a damaged journal comes back."""
