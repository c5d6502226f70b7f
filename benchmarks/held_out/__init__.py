"""Whole models against TorchInductor, none of which any coefficient was fitted to."""
