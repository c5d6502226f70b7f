"""Tiny models of many architectures: exported, compiled for each target, compared with eager."""
