"""What differs between releases of transformers: what an older one reads, and how a newer one is imported."""
