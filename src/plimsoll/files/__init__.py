"""Run folders, folders of prepared data, checksums, and copies of runs in a bucket."""
