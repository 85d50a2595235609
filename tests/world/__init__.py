"""The world that tests run actors in: one fake target and draft, one network, one clock."""
