"""What was built: kernels, bytes, decisions, and what this machine can do."""
