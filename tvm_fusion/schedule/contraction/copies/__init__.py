"""schedule/contraction/copies."""
