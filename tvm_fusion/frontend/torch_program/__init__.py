"""frontend/torch_program."""
