"""Language models in sessions: tokens per second, memory, time to compile."""
