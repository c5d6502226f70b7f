"""What all stages share: decisions, the templates' contract, expressions, constants."""
