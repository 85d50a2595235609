"""Text becomes tokens, and tokens text: tokenizers, chat templates, the texts of a datastore."""
