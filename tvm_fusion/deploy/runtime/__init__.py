"""deploy/runtime."""
