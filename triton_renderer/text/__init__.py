"""What token ids mean: shared by prefill_decode, which looks for stop strings, derender, which answers, and render."""
