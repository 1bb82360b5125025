"""``python -m spaniel``, which torchrun needs."""

from spaniel.cli import main

if __name__ == "__main__":
    main()
