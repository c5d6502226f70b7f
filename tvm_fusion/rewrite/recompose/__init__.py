"""Operators found again in what exporters wrote out: by structure, never by name."""
