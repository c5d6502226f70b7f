"""Whole models beside TorchInductor, none of which any coefficient was fitted to."""
