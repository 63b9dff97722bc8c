"""Define the variational autoencoder of the paper, with discrete latents."""
