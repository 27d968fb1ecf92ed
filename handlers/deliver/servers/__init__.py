"""Servers that answer with the model: files are put where the server sees them, it loads them, is asked, and must answer as the
fine-tuned model does. `answers.py` judges, `asking.py` speaks HTTP, `shelf.py` holds the files; each server is a folder."""
