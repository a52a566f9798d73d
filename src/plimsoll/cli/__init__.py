"""The command line: parses words, calls `api`, and prints answers."""
