"""schedule/convolution/winograd."""
