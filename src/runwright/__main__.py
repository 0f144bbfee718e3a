"""`python -m runwright` is `runwright`."""

from runwright.cli.main import main

main()
