"""The small vision-language model that comes with the project: its data, its training and its evaluation.

Run `python -m training.train` to train it and `python -m training.evaluate` to measure it.
"""
