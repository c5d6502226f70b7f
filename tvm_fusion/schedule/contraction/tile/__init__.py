"""schedule/contraction/tile."""
