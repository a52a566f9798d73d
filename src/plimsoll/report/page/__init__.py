"""The page of `plimsoll report`: a self-contained HTML file about a run or a plan."""
