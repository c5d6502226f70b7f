"""Running sums along rows: one launch, each row read once."""
