"""Mutated files: coverage-guided, structure-aware fuzzing of what is read from disk."""
