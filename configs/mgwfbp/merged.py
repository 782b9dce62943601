"""The best grouping that the costs allow. The default: this file is there to name it."""
