"""Folders that are complete or absent, of a run and of prepared data, and their copies in a bucket."""
