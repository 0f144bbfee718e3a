"""Runtimes carry decisions out: they run steps and report what became of them."""
