"""What a worker is made of: its bounds, what it says, what it leaves behind, and how it died."""
