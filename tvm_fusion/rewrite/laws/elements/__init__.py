"""Laws of arithmetic, element by element.

``sums``, ``products``, ``quotients``, ``signs``
``powers``, ``roots``, ``exponentials``
"""
