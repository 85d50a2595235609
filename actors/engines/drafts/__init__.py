"""A draft model on top of an engine: :class:`draft.Draft` mirrors texts, and its rows are ranked."""
