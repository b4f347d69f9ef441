"""From token ids to text: shared by prefill_decode, which looks for stop strings, and derender, which answers."""
