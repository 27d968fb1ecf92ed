"""From a file event to a job."""
