"""Recurrent layers: LSTM, GRU, RNN.

``cell``: what one step computes; ``buffers``: shapes and addresses.
"""
