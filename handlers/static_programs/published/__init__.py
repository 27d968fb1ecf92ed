"""What lies beside the programs in a published folder, and runs them there."""
