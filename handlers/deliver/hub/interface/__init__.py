"""The Hub's HTTP interface: repositories, commits and large files. Nothing here decides what a version is or where it lies."""
