"""`ckptd fsck`, and the repair of a damaged journal."""
