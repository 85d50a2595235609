"""Draft heads: a layer or a few that read the target's hidden states. One file a kind, over slots as every model."""
