"""Train variational autoencoders."""
