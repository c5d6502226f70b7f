"""The documentation site: Sphinx's sources; ``./dev docs`` builds it into ``build/docs``."""
