"""E-graphs: terms that are equal lie in one class, and laws add terms until nothing new comes.

``terms``, ``head``, ``pattern``                terms and patterns
``law``                                         an equation, both directions, its conditions, and
                                                where its patterns match
``egraph``, ``eclass_analysis``, ``saturate``   classes, what is known of them, rounds of laws
``bounds``, ``axes``, ``extents``, ``weights``  facts that conditions ask for
``extract``                                     costs of terms, and the cheapest graph
``regions``, ``emit``, ``changes``              from Relax and back, and what changed
"""
