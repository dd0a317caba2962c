"""Pictures of Ray programs and library jobs: what the page of a program draws."""
