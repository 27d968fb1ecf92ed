"""What a format declares, and all declarations that are installed. Knows nothing of jobs."""
