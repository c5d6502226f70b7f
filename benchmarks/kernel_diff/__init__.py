"""The generated kernels of two commits, compared: a commit that only renames changes none."""
