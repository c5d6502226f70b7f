"""schedule/contraction/dequantize."""
