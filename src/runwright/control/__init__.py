"""What an operator can do: start, look, signal, rerun."""
