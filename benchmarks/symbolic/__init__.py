"""What a symbolic length costs: one artifact for all lengths against one for each."""
