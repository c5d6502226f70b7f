"""Prices of whole models' fused groups beside what they take, with their alternatives."""
