"""Registers of a thread: ``buffers`` are filled, ``moves`` renamed, ``half_pairs`` packed."""
