"""The wire: messages, frames and transports. Imports msgspec and pyzmq, nothing else of ours."""
