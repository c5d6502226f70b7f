"""What the project is measured with: real models, peers, the measuring harness, results."""
