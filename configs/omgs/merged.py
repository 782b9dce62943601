"""The best grouping that the costs allow. The default of OMGS: this file is there to name it."""
