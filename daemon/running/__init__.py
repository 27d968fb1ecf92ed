"""What the runner is made of: who is next, what a stage needs, what runs, how it ended, and what need not be repeated."""
