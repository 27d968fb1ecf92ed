"""What the journal is made of: its file and the care of it, its tables by concern, its rows, and how it comes back."""
