"""Makers of data sets: what `plimsoll prepare` writes and the sources of `data/` read."""
