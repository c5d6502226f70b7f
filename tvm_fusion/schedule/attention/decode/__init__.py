"""schedule/attention/decode."""
