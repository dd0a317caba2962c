"""What stands for data sets, configs and packages that are not on this machine."""
