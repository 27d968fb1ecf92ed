"""How ckptd comes onto a box: what a first configuration proposes, and the service with its user, rights and units (`units/`)."""
