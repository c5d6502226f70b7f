"""``torch.export`` programs before conversion.

``importer`` reads one, ``decompose`` (with ``attention``, ``half_decompositions`` and
``half_functions``) writes composed operators, ``dims``, ``state``, ``assertions`` and ``results``
are its dimensions, buffers, checks and outputs.
"""
