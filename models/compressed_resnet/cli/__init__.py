"""The command `python -m models.compressed_resnet.train`."""
