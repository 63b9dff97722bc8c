"""The paper's variational autoencoder with discrete latents."""
