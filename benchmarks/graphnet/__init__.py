"""Graphs of real PyTorch models out of the public collection GraphNet: are they right, how fast."""
