"""Prefix sums: one launch, each row read once."""
