"""The page of `plimsoll report`: one HTML file that needs nothing else, for a run or a plan."""
