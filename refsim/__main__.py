"""`python -m refsim`: the command line, where its script is not on the path."""

from refsim.cli import main

if __name__ == "__main__":
    main()
