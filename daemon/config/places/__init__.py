"""Where everything lies: state, output, the daemons that run, and what exports may be called."""
