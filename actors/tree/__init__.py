"""What verifier and drafter share: the token tree, windows, the verify rule, and every method as a setting."""
