"""The light wing of ckptd: it watches, decides, records and supervises. It never imports torch or its kin."""

__version__ = "0.1.0"
