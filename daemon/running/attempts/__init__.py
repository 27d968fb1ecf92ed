"""One attempt of a stage: its job file, the interface to what runs it, the attempts that run now, and how they end."""
