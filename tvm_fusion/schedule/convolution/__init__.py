"""Direct convolutions on CPUs: register tiles of pixels by vectors of output channels."""
