"""What to deploy, and why: which artifact is the best at what, what took whose place, and which checkpoint of the run."""
