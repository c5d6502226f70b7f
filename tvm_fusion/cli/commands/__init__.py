"""One file a command: ``add_arguments``, ``run``, which returns what --json prints, ``show``."""
