"""What is written, in which form, and what goes along."""
