"""deploy/memory."""
