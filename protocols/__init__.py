"""The wire: messages, frames and transports. It imports none of the other packages here."""
