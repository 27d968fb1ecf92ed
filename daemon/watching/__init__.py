"""From hint to job."""
