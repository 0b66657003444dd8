"""``python -m because_rl`` is the command ``because``."""

from because_rl.cli.main import main

main()
