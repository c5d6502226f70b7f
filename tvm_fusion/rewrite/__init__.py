"""Algebra on Relax graphs: changes what is computed, before deciding what shares a kernel.

``laws``       algebraic equations between graphs, a family a file
``egraph``     graphs as classes of equal terms: saturation by laws, and the cheapest term
``search``     regions of a function searched with the planner's cost, and which law gained what
``recompose``  operators that exporters decomposed, put together again
``norms``      norms folded into the products behind them
``parts``      what no one reads is not computed
``products``   products joined, batched, laid out
``bytes``      products and convolutions of quantized networks on bytes

``rules`` lists all by name, and ``simplify`` is the stage; ``nonfinite`` and ``readers`` say who
can tell NaN from a number, and so which laws apply.
"""
