"""What exists: datasheets, links, shared servers, devices and nodes in virtual time."""
