"""Kernels of recurrent layers: LSTM, GRU, RNN."""
