"""Mechanisms that GPU kernels share, each once, with the warp size as a parameter."""
