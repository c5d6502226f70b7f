"""schedule/math."""
