"""frontend/half."""
