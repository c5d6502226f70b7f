"""Planning with measured yellow decisions beside planning by the model alone."""
