"""Single convolution layers in blocked layouts against oneDNN, on a CPU."""
