"""A decoder on several workers, beside one: logits, and time of prefill and decode."""
