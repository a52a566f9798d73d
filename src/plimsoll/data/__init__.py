"""Sources of examples: files to documents to tokens to batches, in NumPy, with positions that are JSON."""

STANDARD_LIBRARY = "python:standard-library"
"""The `--dataset-id` of the Python source that every machine with Python has."""
