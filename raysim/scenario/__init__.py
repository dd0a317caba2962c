"""Scenario files: YAML that points at the user's own DeepSpeed, Hugging Face and Ray files."""
