"""python -m rtgp."""

from rtgp._cli import main

if __name__ == "__main__":
    main()
