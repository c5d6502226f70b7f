"""Prices of whole models' fused groups against what they take, with their alternatives."""
