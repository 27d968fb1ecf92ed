"""The user's own tasks: answers, comparison, stages, and what follows from them."""
