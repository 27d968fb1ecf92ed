"""What an artifact gives outside of our engines."""
