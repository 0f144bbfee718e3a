"""Where expressions run: Jinja's syntax, our own evaluation, a bound on everything."""
