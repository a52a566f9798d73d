"""What people see of a plan and a run: tables, progress, summaries, metrics, trackers, pictures."""
