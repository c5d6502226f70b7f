"""Prices of fused groups beside what they take: of whole models, with every group's alternatives."""
