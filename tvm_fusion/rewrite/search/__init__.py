"""rewrite/search."""
