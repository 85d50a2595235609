"""Where draft tokens come from when not from a model: retrieval and Lookahead's n-grams. Plain Python and numpy."""
