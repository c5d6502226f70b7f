"""Measuring on this machine: functions timed in turns, each measurement in its own process."""
