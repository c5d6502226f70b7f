"""Rewriting and fusion on the graphs and expressions of the literature, losses included."""
