"""schedule/convolution/depthwise."""
