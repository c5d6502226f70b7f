"""AITemplate's graph passes, each with the smallest graphs that it is for."""
