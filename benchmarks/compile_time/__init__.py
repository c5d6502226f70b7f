"""Where the time of a compilation goes."""
