"""What recomposition finds in the zoo's graphs, and what planning makes of it."""
