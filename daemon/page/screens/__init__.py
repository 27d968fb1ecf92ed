"""The pages for people, made on the server: templates, styles and what little script they have."""
