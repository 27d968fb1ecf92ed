"""What lies in a bundle: graphs that the parser takes, sizes, scripts, examples."""
