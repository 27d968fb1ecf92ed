"""Names of the files in an attempt's folder that every attempt has, wherever it runs."""

JOB_FILE = "job.json"
"""What a child is told."""
LOG_FILE = "log.txt"
"""What the child and all that it starts print."""
RESULT_FILE = "result.json"
"""What the child answers."""
