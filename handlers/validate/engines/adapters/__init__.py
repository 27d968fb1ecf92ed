"""Adapters over their base as users of transformers and PEFT get them; where the plain calls are not enough, what was done is told."""
