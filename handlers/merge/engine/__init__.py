"""Executes the plan, resumes an interrupted merge, and checks the written files."""
