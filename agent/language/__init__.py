"""All that speaks to a language model: asking, counting, recording. What it says is only text."""
