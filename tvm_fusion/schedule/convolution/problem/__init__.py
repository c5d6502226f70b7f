"""schedule/convolution/problem."""
