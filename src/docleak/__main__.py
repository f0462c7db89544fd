"""``python -m docleak`` is ``docleak``."""

if __name__ == "__main__":
    from docleak.cli import main

    main()
