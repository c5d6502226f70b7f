"""schedule/attention/cuda_cores."""
