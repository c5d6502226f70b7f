"""Trials a minute by the number of RPC servers."""
