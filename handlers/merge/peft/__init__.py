"""The merge by PEFT itself, with the whole model in memory."""
