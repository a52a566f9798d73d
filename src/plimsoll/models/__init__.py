"""Models that several recipes share: the decoder, its sizes, and weights of published models."""
