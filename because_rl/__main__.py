"""The command ``because``, which is also ``python -m because_rl``."""

import sys


def main() -> None:
    """Run the command line in sys.argv; Ctrl-C may come while the rest of the package is still being imported."""
    try:
        from because_rl.cli.main import main as run
    except KeyboardInterrupt:
        print("because: interrupted.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
