"""Elementwise kernels: maps alone, movement of data included.

``iteration_space``, ``group_maps``   stores over the same axes share a loop nest; which do
``guarded_loads``                     loads with the conditions that guard them
``concat``                            which inputs of a concatenation are stored where
``cpu``, ``gpu``                      the kernels
``template``                          claim, propose, emit
"""
