"""Generate training and evaluation data with a language model, check it and measure it.

`generate` needs the extra `openai`, the plot of `quality` the extra `plots`.
"""
