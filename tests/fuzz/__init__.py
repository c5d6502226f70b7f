"""Random Relax graphs through the whole pipeline, against a float64 interpreter of the graph."""
