"""What the box is and does: memory, disk, mounts, the lock, a thread's guarded round."""
