"""From text to tokens and back: tokenizers, chat templates, the texts of a datastore."""
