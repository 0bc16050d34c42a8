"""Generate training and evaluation data with a language model, check it and measure it."""
