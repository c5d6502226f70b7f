"""Registers and shared memory that templates claim, against those that ptxas allocates."""
