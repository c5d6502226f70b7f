"""schedule/rows/cpu."""
