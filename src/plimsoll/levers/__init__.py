"""Ways to trade memory for time or for precision, one per file, each beside the bytes it claims."""
