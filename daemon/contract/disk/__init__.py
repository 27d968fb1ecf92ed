"""Files and folders: durable, ours, away or silent; the layout of an export, and failpoints."""
