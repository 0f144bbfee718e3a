"""What a log in the words of NoETL is held to, a module for each kind of thing that its events are about."""
