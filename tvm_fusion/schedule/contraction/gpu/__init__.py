"""schedule/contraction/gpu."""
