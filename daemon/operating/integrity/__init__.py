"""`ckptd verify --journal`, and the repair of a damaged journal."""
