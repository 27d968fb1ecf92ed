"""What a person asks of the daemon's work, by a verb or on the page: deliveries by hand, failed jobs once more, the queue."""
