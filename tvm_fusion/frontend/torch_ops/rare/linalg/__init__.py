"""Linear algebra: each matrix of a batch by plain loops of one task of a kernel."""
