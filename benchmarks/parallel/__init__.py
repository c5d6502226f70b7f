"""A decoder on several workers, against one: logits, and time of prefill and decode."""
