"""The kind `hub`: a repository of the Hugging Face Hub, or of a service with its interface.

The Hub's HTTP interface is spoken directly: its own client repeats requests by itself, reads a file as fast as it can, and sends a file of
many parts from its beginning after each interruption. Weights go as Git LFS objects; then one commit makes a version, on a branch of its
own that nobody reads, and a tag (or branch) gives it its name. `main` gets a commit of its own, on top of what is there.
"""
