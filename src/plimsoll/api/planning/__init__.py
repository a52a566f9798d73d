"""Planning: from a user's question and the place of a run to a plan (`find_plan`), a comparison or a largest value."""
