"""Prefix sums with the maps around them: one launch, each row read once."""
