"""What people see in the terminal: the layout, and a module for what each verb prints."""
