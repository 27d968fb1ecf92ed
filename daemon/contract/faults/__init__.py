"""What goes wrong, in words: faults with their codes, events of the log, and text that others wrote, made safe to show."""
