"""What a symbolic length costs: one artifact for all lengths beside one for each."""
