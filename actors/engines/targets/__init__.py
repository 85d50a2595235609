"""A target on top of an engine: :class:`target.Target`, its requests, and its check that speculation changes no bit."""
