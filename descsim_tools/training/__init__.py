"""Training of encoders: group data, losses, the trainer, and what it writes."""
