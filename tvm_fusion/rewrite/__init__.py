"""Algebra on Relax graphs: changes what is computed, before deciding what shares a kernel."""
