"""What rewriting is worth: no rewriting, the published greedy search and ours, on the zoo."""
