"""The client: a server's runs, with the methods of the embedded app."""
