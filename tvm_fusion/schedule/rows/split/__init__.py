"""Few long rows in two launches: parts of a row are reduced, then combined and normalized.

``forms`` is a table of ways, by pixels or by rows; ``reduction`` cuts a row program in two,
``space`` has the parts and threads, ``template`` claims.
"""
