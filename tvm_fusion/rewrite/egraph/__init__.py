"""E-graphs: terms that are equal lie in one class, and laws add terms until nothing new comes.

``terms``, ``head``, ``pattern``   terms and patterns
``law``, ``facts``                 an equation, both directions, where its patterns match; what its
                                   conditions ask for
``graph``, ``analysis``            classes, and what is known of them
``saturate``                       rounds of laws
``extract``                        costs of terms, and the cheapest graph
``regions``, ``emit``, ``changes`` from Relax and back, and what changed
"""
