"""Operators in half types on inputs near the types' limits, against float64 of the same inputs."""
