"""What steps leave behind that is too large or too chatty for the log: values, and their output."""
