"""schedule/convolution/dense."""
