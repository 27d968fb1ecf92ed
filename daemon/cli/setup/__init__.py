"""`ckptd init` and `ckptd install-service`: how ckptd comes onto a box."""
