"""What file systems say: who may read what, whether there is room, where a path is mounted, what a file is."""
