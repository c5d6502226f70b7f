"""Which groups of the zoo's models have design spaces, and what the others take."""
