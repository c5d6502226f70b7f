"""rewrite/norms."""
