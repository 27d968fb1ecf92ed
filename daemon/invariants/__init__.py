"""What `daemon.fsck` checks: the journal, the disk, the processes, and the scene that holds them together."""
