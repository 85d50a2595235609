"""Sources of drafts: drafters, the draft model between forwards, retrieval, grammars."""
