"""Helpers for tests: real components, engines, servers, commands, event builders."""
