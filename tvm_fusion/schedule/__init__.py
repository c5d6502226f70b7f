"""From planned groups to scheduled kernels: one rule after the other, each guarded.

``templates`` lists the templates, ``kernels`` the passes. Below them, from the general to the
kernel:

========================  =========================================================================
stage                     the passes: emit each distinct group, guard, install, pack constants
index, math               indices and their ranges; functions of numbers that kernels are made of
cpu, gpu                  mechanisms that kernels share: register tiles; barriers, copies, fragments
instructions              matrix instructions of all processors, as rows with layouts
contraction               matrix products, and convolutions as products
convolution               direct convolutions: dense, depthwise, Winograd
attention                 two products with a softmax between them
rows                      norms, softmax, reductions of rows
elementwise, columns      maps; reductions over the outer axes
scan, sort, recurrent     prefix sums; sorts by ranks; LSTM and GRU
single                    any one operator, by TVM's own schedules
========================  =========================================================================

A family of kernels is a folder, and its files are the steps in which a kernel is put together,
with the same names everywhere: ``problem`` (what is computed), ``config`` (one configuration),
``space`` (all that fit), ``model`` (estimated clocks), ``default`` (the chosen one), ``mainloop``
or ``roles``, ``epilogue``, ``kernel`` (the PrimFunc), ``template`` (claim, propose, emit).
"""
