"""rewrite/egraph."""
