"""The actors (verifier, drafter, controller, learner), and their tools."""
