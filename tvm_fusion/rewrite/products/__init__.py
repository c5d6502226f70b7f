"""rewrite/products."""
