"""What shares a kernel, and every decision about it with its reason."""
