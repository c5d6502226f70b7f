"""Operators as TensorIR: where their classes, bytes and FLOPs are read from."""
