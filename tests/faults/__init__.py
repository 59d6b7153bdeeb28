"""What can go wrong with a host, its link and its followers, in every phase of a training's life."""
