"""Whole models after so much tuning: untuned, by this package, by stock MetaSchedule."""
