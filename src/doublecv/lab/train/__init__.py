"""Training runs of the autoencoder."""
