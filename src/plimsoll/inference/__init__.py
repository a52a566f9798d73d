"""Use of what was trained: evaluation, samples, export, and the examples that a report shows."""
