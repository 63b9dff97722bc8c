"""`python -m doublecv` is the command `doublecv`."""

from doublecv.lab.cli import main

if __name__ == "__main__":
    main()
