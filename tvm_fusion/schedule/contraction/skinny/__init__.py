"""schedule/contraction/skinny."""
