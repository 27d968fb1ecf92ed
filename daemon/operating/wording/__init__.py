"""What people are told of the daemon and its exports, as sentences in their language: the same by the commands and by the page."""
