"""`runwright worker`: a process that carries steps out for servers elsewhere."""
