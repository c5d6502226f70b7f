"""PyTorch's own operator samples, exported, compiled, run and compared with eager PyTorch."""
