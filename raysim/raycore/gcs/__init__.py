"""The Global Control Service: the one server that knows the whole cluster."""
