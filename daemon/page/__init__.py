"""What is seen of the daemon from anywhere: the page, the API, the figures for a scraper. Off unless `[page]` says where to listen."""
