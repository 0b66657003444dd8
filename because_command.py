"""The command ``because``. It lies outside the package: Ctrl-C may come while the package is still being imported."""

import sys


def main() -> None:
    """Run the command line in sys.argv."""
    try:
        from because_rl.cli.main import main as run
    except KeyboardInterrupt:
        print("because: interrupted.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
