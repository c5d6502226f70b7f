"""schedule/rows/gpu."""
