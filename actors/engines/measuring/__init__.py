"""What ``bench`` and ``doctor`` measure of models without actors."""
