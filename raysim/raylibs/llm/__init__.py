"""Ray Serve LLM: engine replicas in placement groups, behind an ingress."""
