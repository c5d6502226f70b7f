"""schedule/index."""
