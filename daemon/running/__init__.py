"""The runner and its parts: the order of jobs, admission, running attempts, their outcomes, and outputs that are used again."""
