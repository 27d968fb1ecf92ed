"""The version of ckptd, as exports, journals and logs name it."""

__version__ = "1.0.0"
