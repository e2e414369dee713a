"""What ``openmrc train-demo`` runs: a small transformer trained by several ranks while the network fails."""
