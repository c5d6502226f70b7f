"""Column reductions: global pooling of channels-last images."""
