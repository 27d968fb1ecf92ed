"""`[[deliver]]`: where exports are delivered to, and the secrets for it."""
