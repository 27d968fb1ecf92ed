"""One long text: what it is made of, how artifacts do on it, and what that says against them."""
