"""What a running system does now, for people to watch: telemetry and status reports become one picture."""
