"""What users would notice of the verifier's speed, in virtual time."""
