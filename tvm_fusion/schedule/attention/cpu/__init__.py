"""schedule/attention/cpu."""
