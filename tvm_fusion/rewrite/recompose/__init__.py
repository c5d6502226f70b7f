"""Recomposition: operators that exporters decomposed, matched by structure and never by name."""
