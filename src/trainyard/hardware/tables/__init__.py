"""Tables with a source on every line: `energy`, `area`, `cells` of simple logic, and how both shrink (`technology`)."""
