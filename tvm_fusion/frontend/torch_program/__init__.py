"""``torch.export`` programs before conversion.

``importer`` reads one, with its buffers; ``decompose`` (with ``attention`` and
``half_decompositions``) writes composed operators, ``dims`` are its dimensions.
"""
