"""The documents of the HTTP contract (`openai`, `generate`, `derender`) and those between stages (`stages`)."""
