"""What happens when an export fails: what its error means, what is tried next, what is remembered, and what is left to a person."""
