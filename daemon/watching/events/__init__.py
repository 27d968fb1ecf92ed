"""Events of the kernel: which directories are watched, and whether that can be trusted."""
