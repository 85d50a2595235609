"""One request's decoding: its tree, its windows, its waits, and its text. No sockets, and no other request."""
