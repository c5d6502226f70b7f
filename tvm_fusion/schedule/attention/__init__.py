"""Attention: two products with softmax between them, as one kernel."""
