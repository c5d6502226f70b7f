"""schedule/cpu."""
