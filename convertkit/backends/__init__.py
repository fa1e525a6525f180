"""Optional encoders and oracles of other packages, imported only when named."""
