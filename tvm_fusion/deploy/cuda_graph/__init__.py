"""deploy/cuda_graph."""
