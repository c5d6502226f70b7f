"""schedule/attention/flash."""
