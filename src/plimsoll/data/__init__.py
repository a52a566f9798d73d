"""Sources of examples: files to documents to tokens to batches, in NumPy, with positions that are JSON."""
