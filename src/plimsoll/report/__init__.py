"""Output about plans and runs: tables, progress, summaries, metrics, trackers, charts, HTML pages."""
