"""Carries the plan out, resumes, reads back."""
