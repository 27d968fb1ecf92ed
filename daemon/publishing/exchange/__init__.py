"""One folder for another: whose an output folder is, which files are known to be ours, and the exchange of the two by renaming."""
