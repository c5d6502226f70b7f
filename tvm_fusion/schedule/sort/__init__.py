"""Sorts by ranks on a GPU."""
