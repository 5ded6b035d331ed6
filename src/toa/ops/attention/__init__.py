"""Operator attention: one entry, two backends, one definition."""
