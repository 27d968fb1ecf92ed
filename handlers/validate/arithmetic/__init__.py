"""The arithmetic of comparisons: outputs of models beside each other, and what their differences say. Without processes and files."""
