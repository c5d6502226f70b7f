"""Calls in a process whose other library has threads that spin while they wait."""
