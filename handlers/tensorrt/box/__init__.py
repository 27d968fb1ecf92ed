"""What goes to the machine with the GPU: modules that lie in published folders too, and need nothing of ours."""
