"""Products with weights of 4 bits in blocks (MatMulNBits), as decoders of language models have."""
