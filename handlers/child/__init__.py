"""How a child behaves and reports."""
