"""The networks of the papers, except those of torchvision."""
