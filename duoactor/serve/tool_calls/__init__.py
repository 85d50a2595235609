"""Function calling: what a request says of tools, the model's text taken apart, and grammars that force a call."""
