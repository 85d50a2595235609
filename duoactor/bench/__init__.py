"""`duoactor bench`: every method side by side on one's own machine."""
