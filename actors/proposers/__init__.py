"""Draft tokens without a model: retrieval, and Lookahead's n-grams. Plain Python and numpy."""
