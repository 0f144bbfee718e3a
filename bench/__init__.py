"""The benchmark: `python -m bench`. Every figure is a ratio against a reference measured in the same run."""
