"""python -m rtgp."""

from rtgp.cli import main

if __name__ == "__main__":
    main()
