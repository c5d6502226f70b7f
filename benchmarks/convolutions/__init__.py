"""Single convolution layers in blocked layouts beside oneDNN, on a CPU."""
