"""The networks of the papers; what torchvision has is used from there."""
