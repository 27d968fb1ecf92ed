"""What jobs read from outside: whether it is there, and the toolchains that are installed for them."""
