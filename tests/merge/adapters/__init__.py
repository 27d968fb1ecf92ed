"""What adapters bring, and which of them are refused."""
