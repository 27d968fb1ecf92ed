"""What an exported folder is for its readers (all that validate may import, with graphs)."""
