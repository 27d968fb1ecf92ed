"""What the live model says: the prompts, its answers and outputs on them, and what they are worth."""
