"""schedule/contraction/cpu."""
