"""What is written for people: pages, README, messages. The commands and keys in them exist."""
