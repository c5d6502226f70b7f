"""schedule/contraction/mma."""
