"""Models that several recipes share: the decoder, its sizes, and pretrained folders."""
