"""`ckptd verify --deep`: has the checks of published artifacts, or of another program's, made again by child processes."""
