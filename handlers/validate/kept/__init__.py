"""What an export keeps of the live model's answers, so that its artifacts can be checked again where neither base nor checkpoint is."""
