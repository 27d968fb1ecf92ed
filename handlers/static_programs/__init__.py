"""Programs of fixed sizes, of which the formats for phones and small devices are made."""
