"""schedule/contraction/problem."""
