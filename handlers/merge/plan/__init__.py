"""Pure: which output tensor gets which operation."""
