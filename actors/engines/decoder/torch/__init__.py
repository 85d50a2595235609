"""The decoder in plain torch, and attention over slots that the generic engine uses too."""
