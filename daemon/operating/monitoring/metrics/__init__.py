"""Figures for Prometheus: what there is, how it is taken and counted, and its text for a file and for a page."""
