"""The language of what people read: sentences are written in English, and shown in the reader's language by `catalog.py`.

For programs nothing changes with the language: JSON answers, log, journal, codes, keys and commands are English.
"""
