"""``python -m holdfast``: the same as the command ``holdfast``."""

from .cli.main import main

if __name__ == "__main__":
    main()
