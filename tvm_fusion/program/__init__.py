"""A group of operators as one program of index arithmetic, which all templates read."""
