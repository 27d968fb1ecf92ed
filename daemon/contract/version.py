"""The version of ckptd, as exports, journals and logs name it."""

__version__ = "0.1.0"
