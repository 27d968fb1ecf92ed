"""Who may ask the page, and what a connection may take: names, tokens and cookies, the form, limits for clients that keep theirs."""
