"""What a job is for both wings: its options, its plan, what crosses between the processes, and the verdict that follows."""
