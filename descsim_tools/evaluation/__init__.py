"""Evaluation: the paper's protocol, group accuracy, and sentence similarity."""
