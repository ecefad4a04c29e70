"""Networks of text, speech and captions."""
