"""What the daemon and the stages both import: pure data and crash-safe files; stdlib + pydantic only; imports nothing else of daemon/ or
handlers/."""
