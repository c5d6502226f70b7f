"""schedule/rows/program."""
