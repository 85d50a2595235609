"""Starting the actors and watching over them."""
