"""`ckptd bench`: finds an export, has its variants measured by child processes, and gives what they found."""
