"""Attention: two GEMMs with softmax between them, as one kernel (FlashAttention)."""
