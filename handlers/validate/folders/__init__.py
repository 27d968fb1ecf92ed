"""What the files of an artifact say beside those that it was made of, without running it."""
