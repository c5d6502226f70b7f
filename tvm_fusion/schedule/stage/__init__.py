"""schedule/stage."""
