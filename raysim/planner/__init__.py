"""From a question to the cluster to rent: many runs of one scenario, and a choice among them."""
