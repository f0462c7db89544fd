"""A federation over a network: certificates, keys, configurations and start commands for a SuperLink and its silos."""
