"""rewrite/bytes."""
