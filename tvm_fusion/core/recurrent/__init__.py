"""Recurrent layers: LSTM, GRU, RNN.

* ``cell``: what one step computes; ``buffers``: shapes and addresses.
* ``reference``: a layer as plain loops, for any template to replace.
"""
