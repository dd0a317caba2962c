"""Ray Serve: controller, deployments, replicas, routers, proxies, autoscaling; and its load."""
