"""schedule/rows/split."""
