"""deploy/cache."""
