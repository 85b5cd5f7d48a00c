"""``python -m agent_resume``: the command, where its script is not on the PATH."""

from .cli import main

if __name__ == "__main__":
    main()
