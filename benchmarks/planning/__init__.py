"""How long planning takes, and how that grows with a model's depth."""
