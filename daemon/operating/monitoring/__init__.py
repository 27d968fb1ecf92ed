"""What people and programs are told: status, explanations, comparisons, figures, and the live file that they come from."""
