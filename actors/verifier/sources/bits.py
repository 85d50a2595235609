"""A bit for each source of drafts, in :attr:`actors.tree.tree.Node.sources`."""

TEXT, MEMORY, DATASTORE, GRAMMAR, DRAFTER, INLINE, WHOLE, HEAD, RECYCLING = (1 << bit for bit in range(9))
