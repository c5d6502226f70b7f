"""Which layout each edge carries, and which edges are mere views of one buffer."""
