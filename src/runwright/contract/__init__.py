"""What is true everywhere: events, keys, transitions, snapshots, errors.

Pure data and pure functions. Nothing here reads a clock, a file or a socket, and nothing here imports
the rest of the package.
"""
