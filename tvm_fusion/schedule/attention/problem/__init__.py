"""schedule/attention/problem."""
