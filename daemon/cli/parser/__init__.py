"""How the command line is read: the groups of its verbs, what a mistake in it is answered with, and the pages of help."""
