"""What a process of ours does beside its work: threads and rounds that must not end, commands, questions that may stay unanswered."""
