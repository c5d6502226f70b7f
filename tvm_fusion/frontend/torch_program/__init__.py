"""``torch.export`` programs before conversion.

``importer`` reads one, ``decompose`` (with ``attention``, ``half_decompositions`` and
``half_functions``) writes composed operators, ``dims`` and ``state`` are its dimensions and
buffers.
"""
