"""A run on disk or in a bucket: its folder, provenance, mirror and lease."""
