"""The page of `plimsoll report`: one HTML file that needs nothing else, for a run, several runs, or a plan."""
