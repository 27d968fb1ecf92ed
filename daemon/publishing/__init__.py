"""The end of a job: verdict, atomic publication, retention, verification, notification."""
