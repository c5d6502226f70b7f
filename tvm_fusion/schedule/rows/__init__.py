"""Row programs: dependent reductions and maps over common rows, as one kernel."""
