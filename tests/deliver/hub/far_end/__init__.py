"""Parts of the Hub that tests deliver to (`tests.deliver.hub.service`), and who reads it by the Hub's own client."""
